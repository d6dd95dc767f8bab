// The settings dialog: fields of a conversation's requests, the API key, and how settings become
// fields of a request. Settings are what was typed, as text; empty means the server's default.

import { apiKey, isKeyRemembered, setApiKey } from './api.js';
import { byId, el, notify } from './dom.js';

const DEFAULTS = 'mlxcel.settings';

// name, label, kind, then for numbers: least, most
const FIELDS = [
  { name: 'system', label: 'System prompt', kind: 'text' },
  { name: 'temperature', label: 'Temperature', kind: 'number', min: 0, max: 100 },
  { name: 'top_p', label: 'Top p', kind: 'number', min: 0, max: 1 },
  { name: 'top_k', label: 'Top k', kind: 'integer', min: -1, max: 2147483647 },
  { name: 'min_p', label: 'Min p', kind: 'number', min: 0, max: 1 },
  { name: 'repeat_penalty', label: 'Repeat penalty', kind: 'number', min: 0.01, max: 100 },
  { name: 'max_tokens', label: 'Max tokens', kind: 'integer', min: 1, max: 2147483647 },
  { name: 'seed', label: 'Seed', kind: 'integer', min: -1, max: Number.MAX_SAFE_INTEGER },
  { name: 'reasoning_effort', label: 'Reasoning effort', kind: 'choice',
    choices: ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'] },
  { name: 'stop', label: 'Stop texts', kind: 'text',
    help: 'One a line. \\n stands for a line end, \\\\ for a backslash.' },
  { name: 'extra', label: 'More request fields', kind: 'text',
    help: 'A JSON object, for instance {"tools": [...]} or {"response_format": ...}.' },
];

function stopsOf(text) {
  return text.split('\n').filter((line) => line !== '')
    .map((line) => line.replace(/\\(n|t|\\)/g, (_, c) => ({ n: '\n', t: '\t', '\\': '\\' })[c]));
}

// What is wrong with the text of a field, or ''.
function fault(field, text) {
  if (text.trim() === '' || field.kind === 'choice') return '';
  if (field.kind === 'number' || field.kind === 'integer') {
    const value = Number(text);
    if (!Number.isFinite(value)) return 'Not a number.';
    if (field.kind === 'integer' && !Number.isInteger(value)) return 'Not a whole number.';
    if (value < field.min || value > field.max) return `Not from ${field.min} to ${field.max}.`;
  }
  if (field.name === 'extra') {
    try {
      const value = JSON.parse(text);
      if (!value || typeof value !== 'object' || Array.isArray(value)) return 'Not a JSON object.';
    } catch (error) {
      return `Not JSON: ${error.message}`;
    }
  }
  return '';
}

// The fields of a request, without messages.
export function requestFields(settings) {
  const out = {};
  for (const field of FIELDS) {
    const text = String(settings[field.name] ?? '');
    if (text.trim() === '' || fault(field, text) || field.name === 'system') continue;
    if (field.kind === 'number' || field.kind === 'integer') out[field.name] = Number(text);
    else if (field.name === 'stop') out.stop = stopsOf(text);
    else if (field.name !== 'extra') out[field.name] = text;
  }
  const extra = String(settings.extra ?? '');
  const field = FIELDS[FIELDS.length - 1];
  return extra.trim() && !fault(field, extra) ? { ...out, ...JSON.parse(extra) } : out;
}

export function defaultSettings() {
  try {
    const kept = JSON.parse(localStorage.getItem(DEFAULTS) ?? '{}');
    return Object.fromEntries(FIELDS.map((f) => [f.name, kept?.[f.name]])
      .filter(([, value]) => typeof value === 'string'));
  } catch {
    return {};
  }
}

function inputOf(field) {
  const attributes = { id: `set-${field.name}`, 'aria-describedby': `about-${field.name}` };
  if (field.kind === 'text') return el('textarea', { ...attributes, rows: '2', dir: 'auto' });
  if (field.kind === 'choice')
    return el('select', attributes, el('option', { value: '' }, 'Default'),
      ...field.choices.map((c) => el('option', { value: c }, c)));
  return el('input', { ...attributes, type: 'text', inputmode: 'decimal', autocomplete: 'off' });
}

export class SettingsDialog {
  // onSave(settings): the dialog was left with Save.
  constructor(onSave) {
    this.dialog = byId('settings');
    for (const field of FIELDS)
      byId('settings-fields').append(
        el('div', { class: field.kind === 'text' ? 'field wide' : 'field' },
          el('label', { for: `set-${field.name}` }, field.label), inputOf(field),
          el('p', { id: `about-${field.name}`, class: 'muted' }, field.help ?? '')));
    byId('settings-close').onclick = () => this.dialog.close();
    byId('settings-form').onsubmit = (event) => {
      event.preventDefault();
      const settings = this.read();
      if (!settings) return;
      setApiKey(byId('key').value.trim(), byId('key-remember').checked);
      this.dialog.close();
      onSave(settings);
    };
    byId('settings-default').onclick = () => {
      const settings = this.read();
      if (!settings) return;
      localStorage.setItem(DEFAULTS, JSON.stringify(settings));
      byId('settings-default').textContent = 'Kept for new chats';
    };
  }

  // The texts of the fields; null: some are wrong, and the first of them has the focus.
  read() {
    const settings = {};
    let first = null;
    for (const field of FIELDS) {
      const input = byId(`set-${field.name}`), about = byId(`about-${field.name}`);
      const wrong = fault(field, input.value);
      about.textContent = wrong || (field.help ?? '');
      about.className = wrong ? 'wrong' : 'muted';
      if (wrong) input.setAttribute('aria-invalid', 'true');
      else input.removeAttribute('aria-invalid');
      if (wrong) first ??= input;
      if (input.value.trim() !== '') settings[field.name] = input.value;
    }
    first?.focus();
    return first ? null : settings;
  }

  open(settings, focus = null) {
    for (const field of FIELDS) byId(`set-${field.name}`).value = settings[field.name] ?? '';
    byId('key').value = apiKey();
    byId('key-remember').checked = isKeyRemembered();
    byId('settings-default').textContent = 'Use for new chats, too';
    this.read();
    this.dialog.showModal();
    if (focus) byId(focus).focus();
  }

  // The server's defaults, shown where nothing is typed.
  showDefaults(defaults) {
    for (const field of FIELDS) {
      const value = defaults?.[field.name];
      if (field.kind === 'number' || field.kind === 'integer')
        byId(`set-${field.name}`).placeholder = typeof value === 'number' && !(value < 0 && field.min >= 0)
          ? String(Math.round(value * 1e6) / 1e6) : 'default';
    }
  }
}

// ---- colours

const THEMES = ['system', 'light', 'dark'];

export function setUpTheme() {
  const button = byId('theme');
  const show = (theme) => {
    if (theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const label = theme === 'system' ? 'Colours: as the system' : `Colours: ${theme}`;
    button.setAttribute('aria-label', label);
    button.title = label;
  };
  let theme = localStorage.getItem('mlxcel.theme');
  theme = THEMES.includes(theme) ? theme : 'system';
  show(theme);
  button.onclick = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem('mlxcel.theme', theme);
    show(theme);
    notify(button.title);
  };
}
