// The server's routes, addressed relative to the page so that any URL prefix works, and the API
// key: in sessionStorage, or in localStorage when it is to be remembered.

import { SseParser } from './sse.js';

const KEY = 'mlxcel.key';

export function apiKey() {
  return sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || '';
}

export function isKeyRemembered() {
  return localStorage.getItem(KEY) !== null;
}

export function setApiKey(key, remember) {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
  if (key) (remember ? localStorage : sessionStorage).setItem(KEY, key);
}

// The server's own answer that something is wrong.
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The connection ended before the answer did.
export class LostError extends Error {}

function headers(more) {
  const key = apiKey();
  return { ...more, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let message = '';
  try {
    const body = JSON.parse(text);
    message = typeof body.error === 'string' ? body.error : body.error?.message;
  } catch {
    message = text.slice(0, 500);
  }
  message ||= response.statusText || 'no reason given';
  const wait = response.headers.get('Retry-After');
  const more = wait && /^\d+$/.test(wait) ? ` Try again in ${wait} s.` : '';
  return new ApiError(`${message} (HTTP ${response.status}).${more}`, response.status);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: 'same-origin', redirect: 'error', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new LostError('The server cannot be reached.');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function listModels() {
  const reply = await (await request('v1/models', { headers: headers() })).json();
  return Array.isArray(reply.data) ? reply.data.filter((m) => typeof m?.id === 'string') : [];
}

// What the server uses for settings that a request leaves out, and its limits.
export async function props(model) {
  const path = `props?model=${encodeURIComponent(model)}`;
  return (await request(path, { headers: headers() })).json();
}

// Streams an answer; onChunk gets every parsed chunk. Returns when the server said it is complete.
export async function streamChat(body, signal, onChunk) {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    headers: headers({ 'Content-Type': 'application/json' }),
    body: JSON.stringify(body),
    signal,
  });
  let complete = false;
  const parser = new SseParser(({ data }) => {
    if (data === '[DONE]') {
      complete = true;
      return;
    }
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new ApiError('The stream has an event that is not JSON.', 0);
    }
    if (chunk.error) {
      const message = typeof chunk.error === 'string' ? chunk.error : chunk.error.message;
      throw new ApiError(message || 'The server failed.', chunk.error.code || 0);
    }
    onChunk(chunk);
  });
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parser.push(value);
      if (complete) break;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new LostError('The connection was lost.');
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!complete) throw new LostError('The connection was lost before the answer was complete.');
}
