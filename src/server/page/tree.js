// A conversation: a tree of messages, and which branch of it is shown. Plain data, nothing of the
// page. Also its JSON form for export, and the checks of what is imported.

export const FORMAT = 'mlxcel-conversations';
const ROLES = ['user', 'assistant', 'tool'];
const MAX_NODES = 100000;
const IMAGE = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/;

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

export function newConversation(settings = {}, model = '') {
  const now = Date.now();
  return { id: newId(), title: '', created: now, updated: now, model, settings, nodes: {},
    chosen: {}, leaf: null };
}

export function addNode(conversation, parent, fields) {
  const node = { id: newId(), parent, role: 'user', content: '', created: Date.now(), ...fields };
  conversation.nodes[node.id] = node;
  conversation.chosen[parent ?? ''] = node.id;
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  return node;
}

// From the first message to the leaf.
export function path(conversation) {
  const out = [];
  for (let id = conversation.leaf; id; id = conversation.nodes[id].parent)
    out.push(conversation.nodes[id]);
  return out.reverse();
}

function childrenOf(conversation) {
  const children = new Map();
  for (const node of Object.values(conversation.nodes)) {
    const list = children.get(node.parent ?? null);
    if (list) list.push(node);
    else children.set(node.parent ?? null, [node]);
  }
  for (const list of children.values()) list.sort((a, b) => a.created - b.created);
  return children;
}

// For every parent (null: the root) its messages, oldest first.
export function siblingsIn(conversation) {
  const children = childrenOf(conversation);
  return (node) => children.get(node.parent ?? null) ?? [node];
}

// Shows the branch of this message, as far down as it was shown last.
export function select(conversation, node) {
  const children = childrenOf(conversation);
  conversation.chosen[node.parent ?? ''] = node.id;
  let leaf = node;
  for (let list = children.get(leaf.id); list?.length; list = children.get(leaf.id))
    leaf = list.find((n) => n.id === conversation.chosen[leaf.id]) ?? list[list.length - 1];
  conversation.leaf = leaf.id;
}

// The calls of an answer; those of one that was cut off are no whole calls.
function callsOf(node) {
  return ['stopped', 'lost', 'error', 'length', 'running'].includes(node.status) ? [] : node.calls ?? [];
}

// The calls of the answer at the end of the path that have no result yet.
export function openCalls(nodes) {
  const answered = new Set();
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i];
    if (node.role === 'tool') answered.add(node.callId);
    else if (node.role !== 'assistant') return [];
    else return callsOf(node).filter((call) => !answered.has(call.id));
  }
  return [];
}

// What a chat request says. The last answer keeps its reasoning when it is to be continued.
export function messagesOf(nodes, system, isContinued) {
  const out = system ? [{ role: 'system', content: system }] : [];
  nodes.forEach((node, i) => {
    if (node.role === 'tool') {
      out.push({ role: 'tool', tool_call_id: node.callId, content: node.content });
    } else if (node.role === 'user') {
      const images = (node.images ?? []).map((image) => ({ type: 'image_url',
        image_url: { url: image.url } }));
      out.push({ role: 'user', content: images.length
        ? [...images, ...(node.content ? [{ type: 'text', text: node.content }] : [])]
        : node.content });
    } else {
      const message = { role: 'assistant', content: node.content };
      if (isContinued && i === nodes.length - 1 && node.reasoning)
        message.reasoning_content = node.reasoning;
      const calls = callsOf(node);
      if (calls.length)
        message.tool_calls = calls.map((call) => ({ id: call.id, type: 'function',
          function: { name: call.name, arguments: call.arguments } }));
      // an answer that failed before it said anything is no part of the history
      if (node.content || calls.length) out.push(message);
    }
  });
  return out;
}

export function bytesOf(conversation) {
  let n = 1000 + 2 * conversation.title.length;
  for (const node of Object.values(conversation.nodes)) {
    n += 300 + 2 * (node.content.length + (node.reasoning?.length ?? 0));
    for (const image of node.images ?? []) n += image.url.length;
    for (const call of node.calls ?? []) n += 2 * call.arguments.length;
  }
  return n;
}

export function exportText(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

// ---- import

const text = (value, max = 1 << 26) => (typeof value === 'string' ? value.slice(0, max) : '');
const number = (value) => (Number.isFinite(value) ? value : 0);

function readNode(from) {
  if (!from || typeof from !== 'object' || !ROLES.includes(from.role)) return null;
  const node = { id: text(from.id, 64), parent: from.parent == null ? null : text(from.parent, 64),
    role: from.role, content: text(from.content), created: number(from.created) };
  if (!/^[0-9a-z_-]+$/i.test(node.id)) return null;
  if (from.reasoning) node.reasoning = text(from.reasoning);
  if (from.callId) node.callId = text(from.callId, 256);
  if (from.model) node.model = text(from.model, 256);
  if (from.error) node.error = text(from.error, 2000);
  if (['done', 'stopped', 'lost', 'error', 'length'].includes(from.status)) node.status = from.status;
  if (Array.isArray(from.images))
    node.images = from.images.filter((image) => IMAGE.test(image?.url ?? ''))
      .map((image) => ({ url: image.url, name: text(image.name, 200) }));
  if (Array.isArray(from.calls))
    node.calls = from.calls.filter((call) => call && typeof call === 'object')
      .map((call) => ({ id: text(call.id, 256), name: text(call.name, 256),
        arguments: text(call.arguments) }));
  if (from.speed && typeof from.speed === 'object')
    node.speed = Object.fromEntries(Object.entries(from.speed).slice(0, 8)
      .filter(([, v]) => Number.isFinite(v)));
  return node;
}

function readConversation(from) {
  const conversation = newConversation({}, text(from?.model, 256));
  conversation.title = text(from?.title, 200);
  conversation.created = number(from?.created) || conversation.created;
  conversation.updated = number(from?.updated) || conversation.updated;
  const given = from?.settings;
  for (const [name, value] of Object.entries(given && typeof given === 'object' ? given : {}))
    if (typeof value === 'number' || typeof value === 'string')
      Object.defineProperty(conversation.settings, name, { value: String(value), enumerable: true,
        writable: true, configurable: true });
  const list = Object.values(from?.nodes ?? {});
  if (list.length > MAX_NODES) throw new Error('a conversation has too many messages');
  const nodes = new Map();
  for (const item of list) {
    const node = readNode(item);
    if (node) nodes.set(node.id, node);
  }
  // Only what hangs together from a root is taken: no loops, no lost parents.
  const state = new Map();
  const isRooted = (start) => {
    const trail = [];
    let node = start, good;
    for (;;) {
      if (!node) { good = false; break; }
      if (state.has(node.id)) { good = state.get(node.id); break; }
      state.set(node.id, false);
      trail.push(node);
      if (node.parent === null) { good = true; break; }
      node = nodes.get(node.parent);
    }
    for (const n of trail) state.set(n.id, good);
    return good;
  };
  for (const node of nodes.values()) if (isRooted(node)) conversation.nodes[node.id] = node;
  for (const node of Object.values(conversation.nodes)) {
    const chosen = from?.chosen?.[node.parent ?? ''];
    if (chosen === node.id) conversation.chosen[node.parent ?? ''] = node.id;
  }
  const roots = Object.values(conversation.nodes).filter((n) => n.parent === null);
  if (Object.hasOwn(conversation.nodes, from?.leaf ?? '')) conversation.leaf = from.leaf;
  else if (roots.length) select(conversation, roots[roots.length - 1]);
  return conversation;
}

// The conversations of an exported file, with ids of their own. Throws an Error that says why not.
export function importText(source) {
  let all;
  try {
    all = JSON.parse(source);
  } catch {
    throw new Error('the file is not JSON');
  }
  if (all?.format !== FORMAT || !Array.isArray(all.conversations))
    throw new Error('the file is not an export of this page');
  if (all.version !== 1) throw new Error(`version ${text(String(all.version), 20)} is not known`);
  return all.conversations.map(readConversation).filter((c) => c.leaf);
}
