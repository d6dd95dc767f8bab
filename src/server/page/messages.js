// The messages of the branch that is shown. The page's state is in the conversation; a view is made
// anew when the branch changes, and only its text is brought up to date while an answer comes.

import { arrowKeys, byId, copyText, el, iconButton, notify } from './dom.js';
import { renderMarkdown } from './markdown.js';
import { path, siblingsIn } from './tree.js';

const NAMES = { user: 'You', tool: 'Tool result' };
const PROBLEMS = {
  stopped: 'Stopped.',
  length: 'The answer reached the limit of tokens.',
};

function rate(value) {
  return value >= 100 ? Math.round(value) : value.toFixed(1);
}

// "41.3 tokens/s, 120 tokens; prompt of 300 tokens (256 cached) at 900 tokens/s"
export function speedText(speed) {
  if (!speed?.tokens) return '';
  const parts = [];
  if (speed.rate) parts.push(`${speed.isGuess ? 'about ' : ''}${rate(speed.rate)} tokens/s`);
  parts.push(`${speed.tokens} token${speed.tokens === 1 ? '' : 's'}`);
  return parts.join(', ');
}

function speedDetail(speed) {
  if (!speed?.prompt) return '';
  return `Prompt: ${speed.prompt} tokens${speed.cached ? `, ${speed.cached} of them cached` : ''}`
    + (speed.promptRate ? `, read at ${rate(speed.promptRate)} tokens/s` : '');
}

// A value as indented JSON text; text that is not JSON as it is.
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

class MessageView {
  constructor(node) {
    this.node = node;
    this.body = el('div', { class: 'body' });
    this.foot = el('div', { class: 'message-foot' });
    this.element = el('article', { class: 'message', tabindex: '-1', 'data-id': node.id,
      'data-role': node.role },
    el('div', { class: 'who' }, node.role === 'assistant' ? node.model || 'Assistant' : NAMES[node.role]),
    this.body, this.foot);
    this.item = el('li', {}, this.element);
    this.calls = [];
    if (node.role === 'user') this.fillUser();
    else if (node.role === 'tool') this.fillTool();
    else this.fillAssistant();
    this.update();
  }

  fillUser() {
    const images = (this.node.images ?? []).map((image) => el('img', { src: image.url,
      alt: image.name ? `Attached image ${image.name}` : 'Attached image' }));
    if (images.length) this.body.append(el('div', { class: 'images' }, ...images));
    if (this.node.content) this.body.append(el('p', { class: 'as-text', dir: 'auto' }, this.node.content));
  }

  fillTool() {
    this.body.append(el('details', {}, el('summary', {}, 'Result of the call'),
      el('pre', { class: 'json', dir: 'ltr' }, pretty(this.node.content))));
  }

  fillAssistant() {
    this.progress = el('div', { class: 'progress', hidden: true });
    this.thought = el('div', { class: 'markdown' });
    this.summary = el('summary', {}, 'Reasoning');
    this.reasoning = el('details', { class: 'reasoning', hidden: true }, this.summary, this.thought);
    this.answer = el('div', { class: 'markdown' });
    this.tools = el('div', {});
    this.problem = el('p', { class: 'problem', hidden: true });
    this.waiting = el('p', { class: 'waiting', hidden: true }, '\u2026');
    this.body.append(this.progress, this.reasoning, this.answer, this.tools, this.waiting, this.problem);
  }

  get isRunning() {
    return this.node.status === 'running';
  }

  // Brings the answer's text up to date. Returns the milliseconds it took.
  update(progress = null) {
    const { node } = this;
    const label = node.role === 'assistant' ? `Answer of ${node.model || 'the assistant'}` : NAMES[node.role];
    this.element.setAttribute('aria-label', this.isRunning ? `${label}, being written` : label);
    this.element.toggleAttribute('data-running', this.isRunning);
    if (node.role !== 'assistant') return 0;
    const start = performance.now();
    this.reasoning.hidden = !node.reasoning;
    if (node.reasoning) {
      this.summary.textContent = this.isRunning && !node.content ? 'Reasoning \u2026' : 'Reasoning';
      renderMarkdown(this.thought, node.reasoning);
    }
    renderMarkdown(this.answer, node.content);
    this.updateCalls();
    this.showProgress(progress);
    this.waiting.hidden = !this.isRunning || Boolean(node.content || node.reasoning || progress);
    const problem = node.error ?? PROBLEMS[node.status] ?? '';
    this.problem.hidden = !problem;
    this.problem.textContent = problem;
    this.problem.toggleAttribute('data-mild', !node.error);
    return performance.now() - start;
  }

  updateCalls() {
    (this.node.calls ?? []).forEach((call, i) => {
      if (!this.calls[i]) {
        const view = { summary: el('summary'), text: el('pre', { class: 'json', dir: 'ltr', tabindex: '0',
          role: 'group', 'aria-label': 'Arguments of the call' }) };
        this.calls[i] = view;
        this.tools.append(el('details', { class: 'call' }, view.summary, view.text));
      }
      this.calls[i].summary.textContent = `Tool call: ${call.name}`;
      this.calls[i].text.textContent = this.isRunning ? call.arguments : pretty(call.arguments);
    });
  }

  showProgress(progress) {
    this.progress.hidden = !progress || !this.isRunning;
    if (this.progress.hidden) return;
    if (!this.bar) {
      this.bar = el('progress', { 'aria-label': 'Prompt read' });
      this.barText = el('span');
      this.progress.append(this.bar, this.barText);
    }
    this.bar.max = Math.max(1, progress.total);
    this.bar.value = progress.processed;
    this.barText.textContent = `Reading the prompt: ${progress.processed} of ${progress.total} tokens`;
  }
}

export class Messages {
  // actions: answer, regenerate, resume, select, edit(node, text); all of them get the node.
  constructor(actions) {
    this.actions = actions;
    this.list = byId('messages');
    this.scroller = byId('scroll');
    this.views = new Map();
    this.isPinned = true;
    this.scroller.addEventListener('scroll', () => {
      const s = this.scroller;
      this.isPinned = s.scrollHeight - s.scrollTop - s.clientHeight < 60;
    }, { passive: true });
    arrowKeys(this.list, () => [...this.list.querySelectorAll('article')]);
  }

  show(conversation) {
    this.conversation = conversation;
    const nodes = path(conversation), siblings = siblingsIn(conversation);
    this.views.clear();
    this.list.replaceChildren(...nodes.map((node) => {
      const view = new MessageView(node);
      this.views.set(node.id, view);
      this.fillFoot(view, siblings(node), node === nodes[nodes.length - 1]);
      return view.item;
    }));
    if (nodes.length) this.views.get(nodes[nodes.length - 1].id).element.tabIndex = 0;
    byId('empty').hidden = nodes.length > 0;
  }

  // Only the text of one message has grown.
  update(node, progress) {
    const cost = this.views.get(node.id)?.update(progress) ?? 0;
    this.follow();
    return cost;
  }

  // An answer has ended: what is open or selected stays so.
  finish(node) {
    const view = this.views.get(node.id);
    if (!view) return;
    view.update();
    this.fillFoot(view, siblingsIn(this.conversation)(node), true);
    this.follow();
  }

  follow(force = false) {
    if (force) this.isPinned = true;
    if (this.isPinned) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  focus(node) {
    this.views.get(node.id)?.element.focus();
  }

  fillFoot(view, siblings, isLast) {
    const { node, foot } = view, { actions } = this;
    foot.replaceChildren();
    if (siblings.length > 1) foot.append(this.branch(node, siblings));
    if (view.isRunning) return;
    const button = (name, label, action) => foot.append(iconButton(name, label, action,
      { 'data-action': label.toLowerCase().split(' ')[0] }));
    if (node.content || node.reasoning)
      button('copy', 'Copy message', async () => notify((await copyText(node.content || node.reasoning))
        ? 'Copied' : 'Not copied'));
    if (node.role !== 'tool') button('edit', 'Edit message', () => this.edit(view));
    if (node.role === 'assistant') button('again', 'Regenerate answer', () => actions.regenerate(node));
    if (node.role === 'user' && isLast) button('again', 'Ask again', () => actions.answer(node));
    const wasCut = ['stopped', 'lost', 'length', 'error'].includes(node.status);
    if (isLast && node.role === 'assistant' && wasCut && node.content && !node.calls?.length)
      foot.append(el('button', { type: 'button', class: 'plain', 'data-action': 'continue',
        onclick: () => actions.resume(node) }, 'Continue'));
    const speed = speedText(node.speed);
    if (speed) foot.append(el('span', { class: 'speed', title: speedDetail(node.speed) }, speed));
  }

  branch(node, siblings) {
    const at = siblings.indexOf(node);
    const go = (to, name) => () => {
      this.actions.select(siblings[to]);
      // the focus stays with the arrows
      this.views.get(siblings[to].id)?.foot.querySelector(`[data-action="${name}"]`)?.focus();
    };
    return el('span', { class: 'branch', role: 'group', 'aria-label': 'Versions' },
      iconButton('left', 'Previous version', go(Math.max(at - 1, 0), 'previous'),
        { 'data-action': 'previous', 'aria-disabled': at === 0 && 'true' }),
      el('span', {}, el('span', { 'aria-hidden': 'true' }, `${at + 1} / ${siblings.length}`),
        el('span', { class: 'offscreen' }, `Version ${at + 1} of ${siblings.length}`)),
      iconButton('right', 'Next version', go(Math.min(at + 1, siblings.length - 1), 'next'),
        { 'data-action': 'next', 'aria-disabled': at === siblings.length - 1 && 'true' }));
  }

  // Turns the message into a text field; saving makes a new branch.
  edit(view) {
    const { node, body, foot } = view;
    const area = el('textarea', { 'aria-label': 'Text of the message', dir: 'auto' });
    const back = () => {
      this.show(this.conversation);
      this.focus(node);
    };
    const save = () => {
      if (area.value === node.content) back();
      else this.actions.edit(node, area.value);
    };
    area.value = node.content;
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        back();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && node.role === 'user') {
        event.preventDefault();
        save();
      }
    });
    body.replaceChildren(area);
    foot.replaceChildren(
      el('button', { type: 'button', class: 'main', 'data-action': 'save', onclick: save },
        node.role === 'user' ? 'Save and send' : 'Save'),
      el('button', { type: 'button', class: 'plain', onclick: back }, 'Cancel'));
    area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
    area.focus();
  }
}
