// Conversations in IndexedDB, within a bound. Two stores: heads (what the list shows) and
// conversations (all of it). Without IndexedDB they live as long as the page. Nothing is ever
// evicted: when the bound is reached, saving fails and the page says so.

import { bytesOf } from './tree.js';

export const MAX_BYTES = 256 << 20;
// Pages of different servers on one origin keep apart.
const NAME = `mlxcel-chat:${new URL('.', location.href).pathname}`;

export class FullError extends Error {}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('heads', { keyPath: 'id' });
      request.result.createObjectStore('conversations', { keyPath: 'id' });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error('the storage is in use'));
  });
}

export class Store {
  // onChange(id) is called when another tab changed or deleted a conversation.
  static async open(onChange) {
    const store = new Store();
    store.memory = new Map();
    store.heads = new Map();
    try {
      store.db = await open();
      const all = await done(store.db.transaction('heads').objectStore('heads').getAll());
      for (const head of all) store.heads.set(head.id, head);
    } catch {
      store.db = null;
    }
    store.channel = 'BroadcastChannel' in window ? new BroadcastChannel(NAME) : null;
    store.channel?.addEventListener('message', async ({ data }) => {
      if (!store.db) return;
      const head = await done(store.db.transaction('heads').objectStore('heads').get(data.id));
      if (head) store.heads.set(head.id, head);
      else store.heads.delete(data.id);
      onChange(data.id);
    });
    return store;
  }

  get isLasting() {
    return this.db !== null;
  }

  get bytes() {
    let n = 0;
    for (const head of this.heads.values()) n += head.bytes;
    return n;
  }

  // Newest first.
  list() {
    return [...this.heads.values()].sort((a, b) => b.updated - a.updated);
  }

  async load(id) {
    if (!this.db) return this.memory.get(id);
    return done(this.db.transaction('conversations').objectStore('conversations').get(id));
  }

  async save(conversation) {
    const { id, title, created, updated } = conversation;
    const bytes = bytesOf(conversation);
    if (this.bytes - (this.heads.get(id)?.bytes ?? 0) + bytes > MAX_BYTES)
      throw new FullError(`The storage of ${MAX_BYTES >> 20} MB is full: export and delete conversations.`);
    const head = { id, title, created, updated, bytes };
    this.heads.set(id, head);
    if (!this.db) {
      this.memory.set(id, conversation);
      return;
    }
    await this.write((heads, conversations) => {
      heads.put(head);
      conversations.put(conversation);
    });
    this.channel?.postMessage({ id });
  }

  async remove(id) {
    this.heads.delete(id);
    this.memory.delete(id);
    if (!this.db) return;
    await this.write((heads, conversations) => {
      heads.delete(id);
      conversations.delete(id);
    });
    this.channel?.postMessage({ id });
  }

  write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.db.transaction(['heads', 'conversations'], 'readwrite');
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error('not stored'));
      change(transaction.objectStore('heads'), transaction.objectStore('conversations'));
    });
  }
}
