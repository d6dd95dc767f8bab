// The list of conversations at the side: open, rename, delete, export, import.

import { arrowKeys, byId, confirmIn, el, iconButton, notify } from './dom.js';
import { MAX_BYTES } from './store.js';
import { exportText, importText } from './tree.js';

const MAX_IMPORT = 256 << 20;

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function fileName(title) {
  const plain = title.replace(/[^\p{L}\p{N} _-]+/gu, '').trim().slice(0, 40) || 'conversation';
  return `${plain}.json`;
}

export class Conversations {
  // actions: open(id), create(), rename(id, title), remove(id), loaded(id): the conversation.
  constructor(store, actions) {
    Object.assign(this, { store, actions, current: null });
    this.list = byId('conversations');
    arrowKeys(this.list, () => [...this.list.querySelectorAll('.conversation')]);
    this.list.addEventListener('keydown', (event) => {
      const id = event.target.closest('li')?.dataset.id;
      if (!event.target.classList.contains('conversation') || !id) return;
      if (event.key === 'F2') this.rename(id);
      else if (event.key === 'Delete') this.remove(id);
    });
    byId('new').onclick = () => {
      this.close();
      actions.create();
    };
    byId('side-open').onclick = () => this.open();
    byId('side-close').onclick = () => this.close();
    byId('shade').onclick = () => this.close();
    byId('side').addEventListener('keydown', (event) => {
      if (event.key !== 'Escape' || !this.isOpen) return;
      event.stopPropagation();
      this.close();
    });
    byId('export-all').onclick = () => this.exportAll();
    byId('import').onclick = () => byId('import-file').click();
    byId('import-file').onchange = (event) => this.importFile(event.target);
  }

  get isOpen() {
    return byId('side').hasAttribute('data-open');
  }

  // As an overlay, on a narrow screen.
  open() {
    byId('side').setAttribute('data-open', '');
    byId('shade').hidden = false;
    byId('side-open').setAttribute('aria-expanded', 'true');
    byId('column').inert = true;
    byId('new').focus();
  }

  close() {
    if (!this.isOpen) return;
    byId('side').removeAttribute('data-open');
    byId('shade').hidden = true;
    byId('side-open').setAttribute('aria-expanded', 'false');
    byId('column').inert = false;
    byId('side-open').focus();
  }

  show(current = this.current) {
    this.current = current;
    const heads = this.store.list();
    const seen = JSON.stringify([current, heads.map(({ id, title }) => [id, title])]);
    if (seen !== this.seen && !this.isRenaming) {
      this.seen = seen;
      this.fill(heads);
    }
    const mb = (n) => (n / (1 << 20)).toFixed(n < 1 << 20 ? 2 : 0);
    byId('storage').textContent = this.store.isLasting
      ? `${mb(this.store.bytes)} of ${MAX_BYTES >> 20} MB, kept in this browser`
      : 'This browser keeps nothing: conversations end with the page.';
  }

  fill(heads) {
    const focus = this.list.contains(document.activeElement) ? document.activeElement : null;
    const inOrder = heads.some((h) => h.id === this.current) ? this.current : heads[0]?.id;
    this.list.replaceChildren(...heads.map((head) => this.item(head, inOrder)));
    if (!focus) return;
    const item = this.list.querySelector(`li[data-id="${focus.closest('li')?.dataset.id}"]`);
    const action = focus.dataset.action;
    item?.querySelector(action ? `[data-action="${action}"]` : '.conversation')?.focus();
  }

  item({ id, title }, inOrder) {
    const isCurrent = id === this.current;
    return el('li', { 'data-id': id, 'data-current': isCurrent },
      el('button', { type: 'button', class: 'conversation', dir: 'auto', title: title || 'New chat',
        tabindex: id === inOrder ? '0' : '-1', 'aria-current': isCurrent && 'true',
        'aria-keyshortcuts': 'F2 Delete',
        onclick: () => {
          this.close();
          this.actions.open(id);
        } }, title || 'New chat'),
      iconButton('edit', `Rename ${title || 'New chat'}`, () => this.rename(id), { 'data-action': 'rename' }),
      iconButton('save', `Export ${title || 'New chat'}`, () => this.exportOne(id), { 'data-action': 'export' }),
      iconButton('delete', `Delete ${title || 'New chat'}`, () => this.remove(id), { 'data-action': 'delete' }));
  }

  rename(id) {
    const item = this.list.querySelector(`li[data-id="${id}"]`);
    const before = this.store.heads.get(id)?.title ?? '';
    const input = el('input', { type: 'text', maxlength: '200', 'aria-label': 'Name of the conversation', dir: 'auto' });
    let isOver = false;
    const finish = async (keep) => {
      if (isOver) return;
      isOver = true;
      const title = input.value.trim();
      if (keep && title && title !== before) await this.actions.rename(id, title);
      this.isRenaming = false;
      this.seen = '';
      this.show();
      this.list.querySelector(`li[data-id="${id}"] .conversation`)?.focus();
    };
    this.isRenaming = true;
    input.value = before;
    input.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === 'Enter' && !event.isComposing) finish(true);
      else if (event.key === 'Escape') finish(false);
    };
    input.onblur = () => finish(true);
    item.replaceChildren(input);
    input.focus();
    input.select();
  }

  async remove(id) {
    const title = this.store.heads.get(id)?.title || 'New chat';
    if (!(await confirmIn(`Delete "${title}"? This cannot be undone.`, 'Delete'))) return;
    const heads = this.store.list();
    const at = heads.findIndex((h) => h.id === id);
    const next = heads[at + 1] ?? heads[at - 1];
    await this.actions.remove(id);
    (next ? this.list.querySelector(`li[data-id="${next.id}"] .conversation`) : byId('new'))?.focus();
  }

  async exportOne(id) {
    const conversation = await this.actions.loaded(id);
    if (conversation) save(fileName(conversation.title), exportText([conversation]));
  }

  async exportAll() {
    const all = [];
    for (const { id } of this.store.list()) {
      const conversation = await this.actions.loaded(id);
      if (conversation) all.push(conversation);
    }
    save('mlxcel-conversations.json', exportText(all));
  }

  async importFile(input) {
    const file = input.files[0];
    input.value = '';
    if (!file) return;
    try {
      if (file.size > MAX_IMPORT) throw new Error('the file is too large');
      const list = importText(await file.text());
      for (const conversation of list) await this.store.save(conversation);
      notify(`${list.length} conversation${list.length === 1 ? '' : 's'} imported`);
    } catch (error) {
      notify(`Not imported: ${error.message}`, true);
    }
    this.show();
  }
}
