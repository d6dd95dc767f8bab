// Server-sent events from bytes that arrive in pieces of any size: characters, line ends and
// events may be cut anywhere. onEvent gets {event, data} for every complete event.

const MAX_EVENT = 64 << 20;

export class SseParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.decoder = new TextDecoder();
    this.rest = '';
    this.data = [];
    this.size = 0;
    this.event = '';
    this.skipLf = false;
  }

  push(bytes) {
    this.feed(this.decoder.decode(bytes, { stream: true }));
  }

  feed(text) {
    if (!text) return;
    const ends = /\r\n|\n|\r/g;
    let start = this.skipLf && text[0] === '\n' ? 1 : 0;
    this.skipLf = false;
    ends.lastIndex = start;
    for (let m = ends.exec(text); m; m = ends.exec(text)) {
      // a lone CR at the end of a piece may be the first half of CR LF
      if (m[0] === '\r' && ends.lastIndex === text.length) this.skipLf = true;
      const line = this.rest + text.slice(start, m.index);
      this.rest = '';
      start = ends.lastIndex;
      this.line(line);
    }
    this.rest += text.slice(start);
    if (this.rest.length > MAX_EVENT) throw new Error('an event of the stream is too long');
  }

  line(line) {
    if (line === '') {
      if (this.data.length) this.onEvent({ event: this.event || 'message', data: this.data.join('\n') });
      this.data = [];
      this.size = 0;
      this.event = '';
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return; // a comment: keep-alive
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value[0] === ' ') value = value.slice(1);
    if (name === 'event') this.event = value;
    if (name !== 'data') return;
    this.data.push(value);
    this.size += value.length;
    if (this.size > MAX_EVENT) throw new Error('an event of the stream is too long');
  }
}
