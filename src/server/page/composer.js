// The message field: text that grows, images by file, drop and paste, send and stop.

import { byId, el, iconButton, notify } from './dom.js';

const TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];
const MAX_IMAGE = 20 << 20;
const MAX_IMAGES = 16;

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error('it cannot be read'));
    reader.readAsDataURL(file);
  });
}

export class Composer {
  // actions: send(text, images), stop().
  constructor(actions) {
    this.actions = actions;
    this.input = byId('input');
    this.images = [];
    this.noImages = '';
    this.isBusy = false;
    this.input.addEventListener('input', () => this.grow());
    this.input.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId('composer').onsubmit = (event) => {
      event.preventDefault();
      this.send();
    };
    byId('stop').onclick = () => {
      actions.stop();
      this.input.focus();
    };
    byId('attach').onclick = () => (this.noImages ? notify(this.noImages, true) : byId('attach-file').click());
    byId('attach-file').onchange = async (event) => {
      const files = [...event.target.files];
      await this.attach(files);
      event.target.value = '';
      this.input.focus();
    };
    this.input.addEventListener('paste', (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.attach(files);
    });
    this.setUpDrop();
  }

  // Anywhere on the page: a dropped file never replaces it.
  setUpDrop() {
    const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
    const mark = (on) => byId('composer').toggleAttribute('data-drop', on);
    document.addEventListener('dragover', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
    document.addEventListener('dragleave', (event) => {
      if (!event.relatedTarget) mark(false);
    });
    document.addEventListener('drop', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      this.attach([...event.dataTransfer.files]);
    });
  }

  async attach(files) {
    if (this.noImages) {
      notify(this.noImages, true);
      return;
    }
    for (const file of files) {
      const refuse = (why) => notify(`${file.name || 'The image'}: ${why}`, true);
      if (!TYPES.includes(file.type)) refuse('not a PNG, JPEG, WebP or GIF image');
      else if (file.size > MAX_IMAGE) refuse(`larger than ${MAX_IMAGE >> 20} MB`);
      else if (this.images.length >= MAX_IMAGES) refuse(`a message has at most ${MAX_IMAGES} images`);
      else {
        try {
          this.images.push({ url: await dataUrl(file), name: file.name });
        } catch (error) {
          refuse(error.message);
        }
      }
    }
    this.showImages();
  }

  showImages() {
    const list = byId('attached');
    list.hidden = !this.images.length;
    list.replaceChildren(...this.images.map((image) => el('li', {},
      el('img', { src: image.url, alt: image.name || 'image' }),
      iconButton('close', `Remove ${image.name || 'image'}`, () => {
        this.images = this.images.filter((i) => i !== image);
        this.showImages();
        this.input.focus();
      }))));
  }

  // Why images cannot be attached, '': they can.
  setImagesOff(reason) {
    const button = byId('attach');
    this.noImages = reason;
    button.setAttribute('aria-disabled', reason ? 'true' : 'false');
    const label = reason ? `Attach images: ${reason}` : 'Attach images';
    button.setAttribute('aria-label', label);
    button.title = label;
    if (!reason || !this.images.length) return;
    this.images = [];
    this.showImages();
    notify(`The images were removed: ${reason}`, true);
  }

  // What the field is for: a message, or the result of a call.
  setLabel(label) {
    byId('input-label').textContent = label;
    this.input.placeholder = label;
  }

  setBusy(isBusy) {
    const hadFocus = byId('composer').contains(document.activeElement);
    this.isBusy = isBusy;
    byId('send').hidden = isBusy;
    byId('stop').hidden = !isBusy;
    if (hadFocus && document.activeElement === document.body) this.input.focus();
  }

  async send() {
    const text = this.input.value.trim() ? this.input.value : '';
    if (this.isBusy || (!text && !this.images.length)) return;
    const { images } = this;
    if (!(await this.actions.send(text, images))) return;
    this.input.value = '';
    this.images = [];
    this.showImages();
    this.grow();
  }

  grow() {
    this.input.style.height = 'auto';
    this.input.style.height = `${this.input.scrollHeight}px`;
  }
}
