// Markdown to elements. Model output is hostile until shown otherwise: everything enters as text
// nodes, HTML stays text, links lead to http, https and mailto only, pictures become links (nothing
// is loaded from elsewhere), LaTeX stays as it is written. Time is linear in the text: every look
// ahead is bounded or remembered, and so is nesting.

import { copyText, el, icon } from './dom.js';
import { highlight } from './highlight.js';

const MAX_DEPTH = 10; // of quotes and lists
const MAX_INLINE = 100000; // characters of a paragraph; longer ones are plain text
const MAX_OPENERS = 40;
const MAX_LINK = 2000;
const MAX_COLUMNS = 50;
const SCHEMES = new Set(['http:', 'https:', 'mailto:']);

// The address when it may be followed, else null.
export function safeUrl(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return SCHEMES.has(url.protocol) ? url.href : null;
}

function link(url) {
  return el('a', { href: url, target: '_blank', rel: 'noopener noreferrer nofollow', title: url });
}

// ---- inline

const SPECIAL = /[\\`*_~[!<$]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const IS_PUNCTUATION = /[\p{P}\p{S}]/u;
const AUTO = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"'`\\^{}|]{1,2000}/y;
const DOLLAR = /\$[^\s$][^$\n]{0,400}\$(?!\d)/y;

// indexOf that remembers, so that asking at every position costs one pass in all.
class Finder {
  constructor(text) {
    this.text = text;
    this.found = new Map();
  }

  next(what, from) {
    let at = this.found.get(what);
    if (at === undefined || (at >= 0 && at < from)) {
      at = this.text.indexOf(what, from);
      this.found.set(what, at);
    }
    return at;
  }
}

class Inline {
  constructor(parent, text, isInLink) {
    Object.assign(this, { parent, text, isInLink, plain: 0, openers: [] });
    this.finder = new Finder(text);
    this.ticks = null;
  }

  run() {
    const { text } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      if (!found) break;
      at = found.index;
      const next = this.special(at);
      at = next > at ? next : at + found[0].length;
    }
    this.flush(text.length);
  }

  // Text before `to` that is not in the page yet.
  flush(to) {
    if (to > this.plain) this.parent.append(this.text.slice(this.plain, to));
    this.plain = to;
  }

  put(node, from, to) {
    this.flush(from);
    this.parent.append(node);
    this.plain = to;
    return to;
  }

  // Handles what starts here; 0: it is plain text.
  special(at) {
    switch (this.text[at]) {
    case '\\': return this.escape(at);
    case '`': return this.code(at);
    case '[': return this.bracket(at, at);
    case '!': return this.text[at + 1] === '[' ? this.bracket(at, at + 1) : 0;
    case '<': return this.matched(AUTO, at);
    case '$': return this.dollar(at);
    case 'h': return this.bare(at);
    default: return this.delimiter(at);
    }
  }

  escape(at) {
    const next = this.text[at + 1];
    if (next === '(' || next === '[') { // LaTeX: left alone as a whole
      const end = this.finder.next(next === '(' ? '\\)' : '\\]', at + 2);
      return end < 0 ? at + 2 : end + 2;
    }
    if (next === undefined || !PUNCTUATION.test(next)) return 0;
    this.flush(at);
    this.plain = at + 1;
    return at + 2;
  }

  dollar(at) {
    if (this.text[at + 1] === '$') {
      const end = this.finder.next('$$', at + 2);
      return end < 0 ? at + 2 : end + 2;
    }
    DOLLAR.lastIndex = at;
    return DOLLAR.test(this.text) ? DOLLAR.lastIndex : 0;
  }

  code(at) {
    if (!this.ticks) { // where runs of every length stand
      this.ticks = new Map();
      for (const m of this.text.matchAll(/`+/g)) {
        const list = this.ticks.get(m[0].length) ?? { at: [], next: 0 };
        list.at.push(m.index);
        this.ticks.set(m[0].length, list);
      }
    }
    let n = 1;
    while (this.text[at + n] === '`') n++;
    const list = this.ticks.get(n);
    while (list && list.next < list.at.length && list.at[list.next] <= at) list.next++;
    if (!list || list.next === list.at.length) return at + n;
    const end = list.at[list.next];
    let content = this.text.slice(at + n, end).replaceAll('\n', ' ');
    if (content.startsWith(' ') && content.endsWith(' ') && content.trim()) content = content.slice(1, -1);
    return this.put(el('code', {}, content), at, end + n);
  }

  // [text](address "title"); from: where it starts, with the ! of pictures.
  bracket(from, at) {
    const middle = this.finder.next('](', at + 1);
    const inner = this.finder.next('[', at + 1);
    if (middle < 0 || this.finder.next(')', middle + 2) < 0 || middle - at > MAX_LINK || (inner >= 0 && inner < middle)) return 0;
    let end = middle + 2, depth = 0;
    const last = Math.min(this.text.length, end + MAX_LINK);
    for (; end < last; end++) {
      const c = this.text[end];
      if (c === '\n') return 0;
      if (c === '(') depth++;
      if (c === ')' && depth-- === 0) break;
    }
    if (end === last) return 0;
    const target = this.text.slice(middle + 2, end).trim();
    const space = target.search(/\s/);
    const address = (space < 0 ? target : target.slice(0, space)).replace(/^<|>$/g, '');
    const url = this.isInLink ? null : safeUrl(address);
    if (!url) return 0; // stays readable as it was written
    const label = this.text.slice(at + 1, middle);
    const a = link(url);
    if (from < at) a.append(icon('image'), ' ');
    if (label.trim()) inlineInto(a, label, true);
    else a.append(url);
    return this.put(a, from, end + 1);
  }

  matched(pattern, at) {
    pattern.lastIndex = at;
    const found = pattern.exec(this.text);
    const url = found && !this.isInLink ? safeUrl(found[1]) : null;
    if (!url) return 0;
    const a = link(url);
    a.append(found[1]);
    return this.put(a, at, pattern.lastIndex);
  }

  bare(at) {
    if (this.isInLink || (at > 0 && /\w/.test(this.text[at - 1]))) return 0;
    BARE.lastIndex = at;
    let found = BARE.exec(this.text)?.[0];
    if (!found) return 0;
    let end = found.length;
    while (end > 8 && /[.,:;!?*_~\])]/.test(found[end - 1])) {
      if (found[end - 1] === ')' && found.slice(0, end).includes('(')) break;
      end--;
    }
    found = found.slice(0, end);
    const url = safeUrl(found);
    if (!url) return 0;
    const a = link(url);
    a.append(found);
    return this.put(a, at, at + end);
  }

  // A run of *, _ or ~: closes what it can, then may open.
  delimiter(at) {
    const { text } = this, char = text[at];
    let count = 1;
    while (text[at + count] === char) count++;
    const before = at ? text[at - 1] : ' ', after = text[at + count] ?? ' ';
    const isSpaceBefore = /\s/.test(before), isSpaceAfter = /\s/.test(after);
    const isMarkBefore = IS_PUNCTUATION.test(before), isMarkAfter = IS_PUNCTUATION.test(after);
    const left = !isSpaceAfter && (!isMarkAfter || isSpaceBefore || isMarkBefore);
    const right = !isSpaceBefore && (!isMarkBefore || isSpaceAfter || isMarkAfter);
    const opens = left && (char !== '_' || !right || isMarkBefore);
    const closes = right && (char !== '_' || !left || isMarkAfter);
    if ((char === '~' && count !== 2) || (!opens && !closes) || count > 3) return at + count;
    const node = document.createTextNode(text.slice(at, at + count));
    const run = { node, char, count, opens, closes };
    this.put(node, at, at + count);
    if (closes) this.close(run);
    if (opens && run.count) {
      this.openers.push(run);
      if (this.openers.length > MAX_OPENERS) this.openers.shift();
    }
    return at + count;
  }

  close(run) {
    for (let i = this.openers.length - 1; i >= 0 && run.count; i--) {
      const opener = this.openers[i];
      if (opener.char !== run.char || (run.char === '~' && opener.count !== run.count)) continue;
      if ((opener.closes || run.opens) && (opener.count + run.count) % 3 === 0 &&
          (opener.count % 3 || run.count % 3)) continue;
      const n = opener.count >= 2 && run.count >= 2 ? 2 : 1;
      const wrap = document.createElement(run.char === '~' ? 'del' : n === 2 ? 'strong' : 'em');
      while (opener.node.nextSibling !== run.node) wrap.append(opener.node.nextSibling);
      opener.node.after(wrap);
      opener.count -= n;
      run.count -= n;
      opener.node.data = opener.node.data.slice(n);
      run.node.data = run.node.data.slice(n);
      this.openers.length = opener.count ? i + 1 : i;
      if (opener.count) i++; // it may open once more
    }
  }
}

export function inlineInto(parent, text, isInLink = false) {
  if (text.length > MAX_INLINE) parent.append(text);
  else new Inline(parent, text, isInLink).run();
}

// ---- blocks

const FENCE = /^( {0,3})(`{3,}|~{3,})([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;

const isBlank = (line) => !/\S/.test(line);
const isRule = (line) => line.length < 300 && RULE.test(line);
const indentOf = (line) => /^ */.exec(line)[0].length;

function fenceAt(line) {
  const m = FENCE.exec(line);
  return m && !(m[2][0] === '`' && m[3].includes('`')) ? m : null;
}

function itemAt(line) {
  const m = line.length && !isRule(line) ? ITEM.exec(line) : null;
  return m ? { indent: m[1].length, mark: m[2],
    kind: /\d/.test(m[2]) ? m[2][m[2].length - 1] : m[2],
    content: m[1].length + m[2].length + Math.min(Math.max(m[3].length, 1), 4) } : null;
}

function cells(line) {
  const out = [];
  let cell = '', inCode = false;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === '\\' && line[i + 1] === '|') { cell += '|'; i++; continue; }
    if (line[i] === '`') inCode = !inCode;
    if (line[i] === '|' && !inCode) { out.push(cell.trim()); cell = ''; } else cell += line[i];
  }
  out.push(cell.trim());
  if (out[0] === '') out.shift();
  if (out.length && out[out.length - 1] === '') out.pop();
  return out;
}

// The alignments when lines i and i + 1 start a table, else null.
function tableAt(lines, i) {
  const rule = lines[i + 1];
  if (!lines[i].includes('|') || rule === undefined || rule.length > 10000 ||
      lines[i].length > 100000 || !/^[\s|:-]*$/.test(rule) || !rule.includes('-')) return null;
  const marks = cells(rule);
  if (!marks.every((m) => /^:?-+:?$/.test(m)) || cells(lines[i]).length !== marks.length) return null;
  return marks.slice(0, MAX_COLUMNS).map((m) => (m.endsWith(':')
    ? (m.startsWith(':') ? 'center' : 'right') : ''));
}

function startsBlock(lines, i) {
  const line = lines[i];
  if (HEADING.test(line) || QUOTE.test(line) || isRule(line) || fenceAt(line)) return true;
  const item = itemAt(line);
  return (item && !(/\d/.test(item.mark) && !/^1[.)]$/.test(item.mark)) && line.trim().length > item.mark.length)
    || tableAt(lines, i) !== null;
}

// Where the list that starts at line i ends.
function listEnd(lines, i, first) {
  let end = i + 1, content = first.content, fence = null;
  while (end < lines.length) {
    const line = lines[end];
    const mark = fence ? null : fenceAt(line.slice(Math.min(indentOf(line), content)));
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).replaceAll(fence[0], '')) fence = null;
      end++;
      continue;
    }
    if (isBlank(line)) {
      const next = lines[end + 1];
      const item = next === undefined ? null : itemAt(next);
      if (next === undefined || isBlank(next) || !(indentOf(next) >= Math.min(content, first.indent + 2) ||
          (item && item.kind === first.kind && item.indent <= first.indent + 3))) break;
      end++;
      continue;
    }
    const item = itemAt(line);
    if (item && item.indent < first.indent + 2) {
      if (item.kind !== first.kind || item.indent < first.indent - 1) break;
      content = item.content;
    } else if (indentOf(line) < first.indent + 2 && !item) {
      if (isBlank(lines[end - 1]) || startsBlock(lines, end)) break;
    }
    if (mark && indentOf(line) >= first.indent + 2) fence = mark[2];
    end++;
  }
  return end;
}

// One block: {kind, end, ...}; end is the line behind it.
function blockAt(lines, i, depth) {
  const line = lines[i];
  const fence = fenceAt(line);
  if (fence) {
    let end = i + 1;
    while (end < lines.length) {
      const close = FENCE.exec(lines[end]);
      if (close && close[2].startsWith(fence[2]) && isBlank(close[3])) break;
      end++;
    }
    return { kind: 'code', indent: fence[1].length, language: fence[3].trim(), last: end,
      end: Math.min(end + 1, lines.length) };
  }
  const heading = HEADING.exec(line);
  if (heading) return { kind: 'heading', level: heading[1].length, skip: heading[0].length, end: i + 1 };
  if (isRule(line)) return { kind: 'rule', end: i + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) {
    let end = i + 1;
    while (end < lines.length && (QUOTE.test(lines[end]) ||
           (!isBlank(lines[end]) && !startsBlock(lines, end)))) end++;
    return { kind: 'quote', end };
  }
  const item = depth < MAX_DEPTH ? itemAt(line) : null;
  if (item) return { kind: 'list', item, end: listEnd(lines, i, item) };
  const align = tableAt(lines, i);
  if (align) {
    let end = i + 2;
    while (end < lines.length && lines[end].includes('|') && !isBlank(lines[end])) end++;
    return { kind: 'table', align, end };
  }
  let end = i + 1;
  const isMath = line.trim().startsWith('$$') || line.trim().startsWith('\\[');
  if (isMath) { // to its end, whatever stands in it
    const close = line.trim().startsWith('$$') ? '$$' : '\\]';
    let last = i;
    const isLast = (k) => (k === i ? lines[k].trim().slice(2) : lines[k]).includes(close);
    while (last < lines.length && last < i + 200 && !isLast(last)) last++;
    if (last < lines.length && last < i + 200) return { kind: 'paragraph', end: last + 1 };
  }
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    if (lines[end].length < 300 && /^ {0,3}(=+|-{2,}) *$/.test(lines[end]))
      return { kind: 'setext', level: lines[end].includes('=') ? 1 : 2, end: end + 1 };
    if (startsBlock(lines, end)) break;
  }
  return { kind: 'paragraph', end };
}

function codeBlock(code, language) {
  const name = /^[\w+#.-]{1,20}/.exec(language)?.[0] ?? '';
  const label = el('span', { class: 'code-copied', 'aria-live': 'polite' });
  const button = el('button', { type: 'button', class: 'tool', 'aria-label': 'Copy code', title: 'Copy code',
    onclick: async () => {
      label.textContent = (await copyText(code)) ? 'Copied' : 'Not copied';
      setTimeout(() => { label.textContent = ''; }, 2000);
    } }, icon('copy'));
  const content = el('code', {});
  highlight(content, code, name.toLowerCase());
  return el('figure', { class: 'code', dir: 'ltr' },
    el('figcaption', {}, el('span', {}, name || 'text'), label, button),
    el('pre', { tabindex: '0', 'aria-label': `Code${name ? `, ${name}` : ''}`, role: 'group' }, content));
}

function tableBlock(lines, align) {
  const row = (line, tag) => {
    const tr = el('tr');
    const all = cells(line);
    align.forEach((side, k) => {
      const cell = el(tag, { dir: 'auto', class: side && `align-${side}`, scope: tag === 'th' && 'col' });
      inlineInto(cell, all[k] ?? '');
      tr.append(cell);
    });
    return tr;
  };
  return el('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': 'Table' },
    el('table', {}, el('thead', {}, row(lines[0], 'th')),
      el('tbody', {}, ...lines.slice(2).map((line) => row(line, 'td')))));
}

function listBlock(lines, first, depth) {
  const isOrdered = /\d/.test(first.mark);
  const items = [];
  let isLoose = false;
  for (const line of lines) {
    const item = itemAt(line);
    if (item && item.kind === first.kind && item.indent < first.indent + 2 &&
        !(items.length && items[items.length - 1].fence)) {
      items.push({ content: item.content, lines: [line.slice(item.content)], fence: false });
      continue;
    }
    const at = items[items.length - 1];
    at.lines.push(line.slice(Math.min(indentOf(line), at.content)));
    const text = at.lines[at.lines.length - 1];
    if (fenceAt(text)) at.fence = !at.fence;
  }
  for (const item of items.slice(0, -1))
    if (item.lines.length > 1 && isBlank(item.lines[item.lines.length - 1])) isLoose = true;
  const start = isOrdered ? Number.parseInt(first.mark, 10) : 1;
  const list = el(isOrdered ? 'ol' : 'ul', { start: start !== 1 && String(start), dir: 'auto' });
  for (const item of items) {
    const li = el('li', { dir: 'auto' });
    const task = /^\[([ xX])\] +/.exec(item.lines[0]);
    if (task) {
      const isDone = task[1] !== ' ';
      item.lines[0] = item.lines[0].slice(task[0].length);
      li.className = 'task';
      li.append(el('span', { role: 'img', class: 'task-mark', 'aria-label': isDone ? 'done' : 'open' },
        isDone ? '\u2611' : '\u2610'), ' ');
    }
    const inside = blocks(item.lines, depth + 1);
    const isTight = !isLoose && inside.filter((node) => node.tagName === 'P').length === 1;
    for (const node of inside) {
      if (isTight && node.tagName === 'P') li.append(el('span', { class: 'paragraph' }, ...node.childNodes));
      else li.append(node);
    }
    list.append(li);
  }
  return list;
}

function build(block, lines, depth) {
  const paragraph = (tag, text) => {
    const element = el(tag, { dir: 'auto' });
    inlineInto(element, text);
    return element;
  };
  switch (block.kind) {
  case 'code': {
    const cut = new RegExp(`^ {0,${block.indent}}`);
    const inside = lines.slice(1, block.inside).map((l) => (block.indent ? l.replace(cut, '') : l));
    return codeBlock(inside.join('\n'), block.language);
  }
  case 'heading': {
    let text = lines[0].slice(block.skip).trimEnd(), end = text.length;
    while (end && text[end - 1] === '#') end--;
    if (end < text.length && (!end || /\s/.test(text[end - 1]))) text = text.slice(0, end).trimEnd();
    return paragraph(`h${Math.min(block.level + 2, 6)}`, text);
  }
  case 'setext':
    return paragraph(`h${block.level + 2}`, lines.slice(0, -1).join('\n').trim());
  case 'rule':
    return el('hr');
  case 'quote':
    return el('blockquote', { dir: 'auto' }, ...blocks(lines.map((l) => l.replace(QUOTE, '')), depth + 1));
  case 'list':
    return listBlock(lines, block.item, depth);
  case 'table':
    return tableBlock(lines, block.align);
  default:
    return paragraph('p', lines.map((l) => l.trimStart()).join('\n').trimEnd());
  }
}

function* pieces(lines, depth) {
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const block = blockAt(lines, i, depth);
    if (block.kind === 'code') block.inside = block.last - i;
    yield { block, lines: lines.slice(i, block.end) };
    i = block.end;
  }
}

function blocks(lines, depth) {
  const out = [];
  for (const piece of pieces(lines, depth)) out.push(build(piece.block, piece.lines, depth));
  return out;
}

const shown = new WeakMap(); // container -> its blocks, {source, node}

// Shows the text in the container. Blocks that are as they were are kept, so that a growing answer
// costs its last block only.
export function renderMarkdown(container, text) {
  const before = shown.get(container) ?? [], after = [];
  const lines = text.replace(/\r\n?/g, '\n').replaceAll('\0', '\uFFFD')
    .replace(/^\t+/gm, (tabs) => ' '.repeat(4 * tabs.length)).split('\n');
  for (const piece of pieces(lines, 0)) {
    const source = `${piece.block.kind}\n${piece.lines.join('\n')}`;
    const old = before[after.length];
    if (old?.source === source) {
      after.push(old);
      continue;
    }
    const node = build(piece.block, piece.lines, 0);
    if (old) old.node.replaceWith(node);
    else container.append(node);
    after.push({ source, node });
  }
  for (const { node } of before.slice(after.length)) node.remove();
  shown.set(container, after);
}
