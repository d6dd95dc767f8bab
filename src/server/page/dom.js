// Small helpers for elements. Text only ever enters the page as text nodes and attributes.

const SVG = 'http://www.w3.org/2000/svg';

// el('p', {class: 'note', onclick: f}, 'text', child). null and false are left out.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// A symbol of the sprite in index.html.
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', `#icon-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick, attributes = {}) {
  return el('button', { type: 'button', class: 'tool', 'aria-label': label, title: label, onclick,
    ...attributes }, icon(name));
}

export const byId = (id) => document.getElementById(id);

// Said once to screen readers, politely.
export function announce(message) {
  const region = byId('announcer');
  region.textContent = '';
  setTimeout(() => { region.textContent = message; }, 50);
}

let noteTimer = 0;

// A line above the composer that goes away by itself.
export function notify(message, isError = false) {
  const note = byId('note');
  note.textContent = message;
  note.hidden = false;
  note.dataset.kind = isError ? 'error' : 'info';
  clearTimeout(noteTimer);
  noteTimer = setTimeout(() => { note.hidden = true; }, isError ? 12000 : 5000);
}

// Asks in a dialog; resolves to whether the answer is yes.
export function confirmIn(question, yes) {
  const dialog = byId('confirm');
  byId('confirm-text').textContent = question;
  const accept = byId('confirm-yes'), refuse = byId('confirm-no');
  accept.textContent = yes;
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (answer) => {
      dialog.close();
      resolve(answer);
    };
    accept.onclick = () => end(true);
    refuse.onclick = () => end(false);
    dialog.oncancel = () => end(false);
  });
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // not a secure context, or not allowed
    const area = el('textarea', { class: 'offscreen', 'aria-hidden': 'true', tabindex: '-1' });
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    before?.focus();
    return copied;
  }
}

// Arrow keys, Home and End move between the items of a list; one of them is in the tab order.
export function arrowKeys(list, items) {
  list.addEventListener('keydown', (event) => {
    const all = items(), at = all.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, to))];
    for (const item of all) item.tabIndex = item === next ? 0 : -1;
    next.focus();
  });
  list.addEventListener('focusin', (event) => {
    const all = items();
    if (all.includes(event.target))
      for (const item of all) item.tabIndex = item === event.target ? 0 : -1;
  });
}
