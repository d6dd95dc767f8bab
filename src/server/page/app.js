// The chat page: joins the list of conversations, the messages, the composer and the server.
// State: the conversation that is shown; answers that run, one at most per conversation (they go on
// while another one is shown); the models of the server.

import { listModels, props, streamChat, ApiError } from './api.js';
import { Composer } from './composer.js';
import { Conversations } from './conversations.js';
import { announce, byId, el, notify } from './dom.js';
import { Messages } from './messages.js';
import { requestFields, defaultSettings, SettingsDialog, setUpTheme } from './settings.js';
import { Store } from './store.js';
import * as tree from './tree.js';

const SAVE_MS = 1500; // between saves while an answer comes
const MODEL = 'mlxcel.model';

let store, list, messages, composer, settings;
let current = tree.newConversation(defaultSettings());
let models = [], modelTimer = 0;
const runs = new Map(); // conversation id -> run
const removed = new Set(); // ids that must not be saved again

// ---- keeping

async function save(conversation) {
  if (removed.has(conversation.id)) return;
  try {
    await store.save(conversation);
  } catch (error) {
    notify(`Not kept: ${error.message}`, true);
  }
  list.show();
}

async function loaded(id) {
  if (current.id === id) return current;
  return runs.get(id)?.conversation ?? store.load(id);
}

// Answers that were being written when the page was closed.
function settle(conversation) {
  for (const node of Object.values(conversation.nodes))
    if (node.status === 'running' && runs.get(conversation.id)?.node !== node) {
      node.status = 'lost';
      node.error = 'The page was closed before the answer was complete.';
    }
}

// ---- what is shown

function show(conversation) {
  current = conversation;
  settle(conversation);
  messages.show(conversation);
  messages.follow(true);
  list.show(conversation.id);
  showModel();
  refresh();
  document.title = conversation.title ? `${conversation.title} - mlxcel` : 'mlxcel';
}

// Buttons and labels that depend on the end of the branch.
function refresh() {
  const open = tree.openCalls(tree.path(current));
  composer.setBusy(runs.has(current.id));
  composer.setLabel(open.length ? `Result of ${open[0].name}` : 'Message');
}

function create() {
  const model = byId('model').value;
  show(tree.newConversation(defaultSettings(), model));
  composer.input.focus();
}

async function open(id) {
  const conversation = await loaded(id);
  if (!conversation) {
    store.heads.delete(id);
    list.show();
    return;
  }
  show(conversation);
  composer.input.focus();
}

// ---- answers

class Run {
  constructor(conversation, node) {
    Object.assign(this, { conversation, node, abort: new AbortController(), progress: null,
      chunks: 0, firstMs: 0, nextDraw: 0, drawTimer: 0, nextSave: performance.now() + SAVE_MS });
  }

  take(chunk) {
    const { node } = this;
    if (chunk.prompt_progress) this.progress = chunk.prompt_progress;
    const choice = chunk.choices?.[0], delta = choice?.delta ?? {};
    const text = typeof delta.content === 'string' ? delta.content : '';
    const thought = delta.reasoning_content ?? delta.reasoning ?? '';
    if (text || thought || delta.tool_calls) {
      this.progress = null;
      this.firstMs ||= performance.now();
      this.chunks++;
    }
    if (text) node.content += text;
    if (typeof thought === 'string' && thought) node.reasoning = (node.reasoning ?? '') + thought;
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    if (choice?.finish_reason) node.finish = choice.finish_reason;
    this.takeSpeed(chunk);
    this.draw();
    if (performance.now() > this.nextSave) this.keep();
  }

  // Seldom when it takes long: images are written again every time.
  async keep() {
    const start = performance.now();
    this.nextSave = Infinity;
    await save(this.conversation);
    const now = performance.now();
    this.nextSave = now + Math.max(SAVE_MS, 10 * (now - start));
  }

  takeCall(part) {
    const calls = this.node.calls ??= [];
    const index = Number.isInteger(part.index) ? part.index : calls.length;
    if (index < 0 || index > calls.length || index > 255) return;
    const call = calls[index] ??= { id: '', name: '', arguments: '' };
    if (part.id) call.id = String(part.id);
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }

  takeSpeed({ timings, usage }) {
    const speed = this.node.speed ??= {};
    if (usage) {
      speed.tokens = usage.completion_tokens;
      speed.prompt = usage.prompt_tokens;
      speed.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    if (timings) {
      speed.tokens = timings.predicted_n;
      speed.rate = timings.predicted_per_second;
      speed.promptRate = timings.prompt_per_second;
      speed.prompt ??= timings.prompt_n + (timings.cache_n ?? 0);
      speed.cached ??= timings.cache_n ?? 0;
    }
  }

  // At most once a frame, and so that drawing takes a third of the time at most.
  draw() {
    if (this.drawTimer || current !== this.conversation) return;
    const wait = Math.max(0, this.nextDraw - performance.now());
    this.drawTimer = setTimeout(() => requestAnimationFrame(() => {
      this.drawTimer = 0;
      if (current !== this.conversation || !runs.has(this.conversation.id)) return;
      const cost = messages.update(this.node, this.progress);
      this.nextDraw = performance.now() + 2 * cost;
    }), wait);
  }

  // Without the server's own figures: pieces are about tokens.
  guessSpeed() {
    const { node } = this, seconds = (performance.now() - this.firstMs) / 1000;
    if (!this.chunks || node.speed?.rate) return;
    const tokens = node.speed?.tokens ?? this.chunks;
    node.speed = { ...node.speed, tokens, isGuess: 1, ...(seconds > 0.05 ? { rate: tokens / seconds } : {}) };
  }
}

function failed(run, error) {
  const { node } = run;
  if (error.name === 'AbortError') {
    node.status = 'stopped';
    return;
  }
  node.status = error instanceof ApiError ? 'error' : 'lost';
  node.error = error.message;
  if (error instanceof ApiError && error.status === 401) {
    settings.open(current.settings, 'key');
    notify('The server wants an API key.', true);
  }
}

// Writes into the node, which is the leaf; what it holds already is gone on with.
async function generate(conversation, node) {
  const run = new Run(conversation, node);
  const isContinued = Boolean(node.content);
  const nodes = tree.path(conversation);
  const fields = { ...requestFields(conversation.settings) };
  const body = { ...(conversation.model ? { model: conversation.model } : {}), ...fields,
    messages: tree.messagesOf(isContinued ? nodes : nodes.slice(0, -1), conversation.settings.system, isContinued),
    stream: true, stream_options: { include_usage: true }, return_progress: true,
    ...(isContinued ? { continue_final_message: true } : {}) };
  Object.assign(node, { status: 'running', model: conversation.model });
  delete node.error;
  delete node.speed;
  runs.set(conversation.id, run);
  if (current === conversation) show(conversation);
  try {
    await streamChat(body, run.abort.signal, (chunk) => run.take(chunk));
    node.status = node.finish === 'length' ? 'length' : 'done';
  } catch (error) {
    failed(run, error);
  }
  run.guessSpeed();
  delete node.finish;
  runs.delete(conversation.id);
  conversation.updated = Date.now();
  if (current === conversation) {
    messages.finish(node);
    refresh();
    announce(node.error ? `Error: ${node.error}` : `Answer: ${(node.content || 'without text').slice(0, 2000)}`);
  }
  await save(conversation);
}

function answer(parent) {
  if (runs.has(current.id)) return;
  const conversation = current;
  conversation.leaf = parent.id;
  const node = tree.addNode(conversation, parent.id, { role: 'assistant' });
  generate(conversation, node);
}

async function send(text, images) {
  const conversation = current;
  if (runs.has(conversation.id)) return false;
  const open = tree.openCalls(tree.path(conversation));
  if (!conversation.model) conversation.model = byId('model').value;
  if (!conversation.title) conversation.title = (text || 'Image').trim().replace(/\s+/g, ' ').slice(0, 60);
  const node = tree.addNode(conversation, conversation.leaf, open.length
    ? { role: 'tool', content: text, callId: open[0].id }
    : { role: 'user', content: text, ...(images.length ? { images } : {}) });
  if (open.length > 1) {
    show(conversation);
    save(conversation);
  } else {
    save(conversation);
    answer(node);
  }
  return true;
}

function isBusy() {
  if (runs.has(current.id)) notify('An answer is being written: stop it first.');
  return runs.has(current.id);
}

const actions = {
  answer,
  regenerate(node) {
    if (!isBusy()) answer(current.nodes[node.parent]);
  },
  resume(node) {
    if (!isBusy()) generate(current, node);
  },
  select(node) {
    if (isBusy()) return;
    tree.select(current, node);
    messages.show(current);
    refresh();
    save(current);
  },
  edit(node, text) {
    if (isBusy()) return;
    const copy = tree.addNode(current, node.parent, { role: node.role, content: text,
      ...(node.images ? { images: node.images } : {}), ...(node.reasoning ? { reasoning: node.reasoning } : {}),
      ...(node.role === 'assistant' ? { model: node.model, status: 'done' } : {}) });
    if (node.role === 'user') {
      answer(copy);
      composer.input.focus();
    } else {
      show(current);
      messages.focus(copy);
    }
    save(current);
  },
};

function stop() {
  runs.get(current.id)?.abort.abort();
}

// ---- models

function imagesOff(model) {
  if (!model || model.vision === 'supported') return '';
  if (model.vision === 'none') return `${model.id} reads text only`;
  if (model.vision === 'unavailable')
    return `images are unavailable: ${model.vision_reason || 'the server gives no reason'}`;
  return ''; // an older server: it will say so itself
}

function showModel() {
  const select = byId('model');
  if (current.model && !models.some((m) => m.id === current.model) && models.length) {
    current.model = models[0].id; // it is not served any more
  }
  if (current.model) select.value = current.model;
  const model = models.find((m) => m.id === select.value);
  composer.setImagesOff(imagesOff(model));
  const context = model?.context_length ?? model?.meta?.n_ctx;
  byId('model-about').textContent = !model ? ''
    : model.status === 'unavailable' ? `${model.id} is unavailable: ${model.error ?? ''}`
      : model.status === 'loading' ? `${model.id} is being loaded`
        : [model.id, context && `context of ${context} tokens`, model.quantisation, model.backend]
          .filter(Boolean).join(', ');
  if (model && (model.status ?? 'ready') === 'ready' && model.id !== showModel.asked) {
    showModel.asked = model.id;
    props(model.id).then((p) => settings.showDefaults(p.default_generation_settings?.params), () => {});
  }
}

async function loadModels() {
  clearTimeout(modelTimer);
  try {
    models = await listModels();
  } catch (error) {
    notify(error.message, true);
    if (error.status === 401 && !byId('settings').open) settings.open(current.settings, 'key');
    else if (error.status !== 401) modelTimer = setTimeout(loadModels, 5000);
    models = [];
  }
  const select = byId('model');
  select.replaceChildren(...models.map((m) => el('option', { value: m.id,
    disabled: m.status === 'unavailable', title: m.error },
  m.status && m.status !== 'ready' ? `${m.id} (${m.status})` : m.id)));
  if (!models.length) select.append(el('option', { value: '' }, 'No model'));
  const wanted = [current.model, localStorage.getItem(MODEL)].find((id) =>
    models.some((m) => m.id === id && m.status !== 'unavailable'));
  select.value = wanted ?? models.find((m) => m.status !== 'unavailable')?.id ?? select.value;
  if (!current.leaf) current.model = select.value;
  showModel();
  if (models.some((m) => m.status === 'loading')) modelTimer = setTimeout(loadModels, 1500);
}

// ---- start

function setUp() {
  messages = new Messages(actions);
  composer = new Composer({ send, stop });
  settings = new SettingsDialog((values) => {
    current.settings = values;
    if (current.leaf) save(current);
    loadModels();
    composer.input.focus();
  });
  list = new Conversations(store, {
    open,
    create,
    loaded,
    async rename(id, title) {
      const conversation = await loaded(id);
      if (!conversation) return;
      conversation.title = title;
      await save(conversation);
    },
    async remove(id) {
      removed.add(id);
      runs.get(id)?.abort.abort();
      await store.remove(id);
      if (current.id === id) create();
      list.show();
    },
  });
  byId('settings-open').onclick = () => settings.open(current.settings);
  byId('model').onchange = (event) => {
    current.model = event.target.value;
    localStorage.setItem(MODEL, current.model);
    showModel();
    if (current.leaf) save(current);
  };
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !event.isComposing && !document.querySelector('dialog[open]')) stop();
  });
  // what came so far is kept when the page goes away in the middle
  window.addEventListener('pagehide', () => {
    for (const run of runs.values()) store.save(run.conversation).catch(() => {});
  });
}

async function start() {
  setUpTheme();
  store = await Store.open(async (id) => {
    if (id === current.id && !runs.has(id)) {
      const conversation = await store.load(id);
      if (conversation && current.id === id && !runs.has(id)) show(conversation);
    }
    list.show();
  });
  setUp();
  show(current);
  composer.input.focus();
  await loadModels();
  document.documentElement.dataset.ready = '';
}

start();
