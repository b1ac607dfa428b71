/** Server-sent events read with `fetch`, so that the token travels in a header. */

import { authorizedFetch } from './session';

export interface StreamEvent {
  type: string;
  data: unknown;
}

interface StreamOptions {
  path: string;
  onEvent: (event: StreamEvent) => void;
}

const firstDelay = 500;
const maxDelay = 10_000;

/** Reads events until the returned function is called; reconnects after a failure, more slowly each time. */
export function openStream({ path, onEvent }: StreamOptions): () => void {
  const abort = new AbortController();
  void (async () => {
    let delay = firstDelay;
    while (!abort.signal.aborted) {
      try {
        const response = await authorizedFetch(path, {
          headers: { accept: 'text/event-stream' },
          signal: abort.signal,
        });
        if (response.ok && response.body) {
          delay = firstDelay;
          await readEvents(response.body, onEvent);
        }
      } catch {
        if (abort.signal.aborted) return;
      }
      await pause(delay, abort.signal);
      delay = Math.min(delay * 2, maxDelay);
    }
  })();
  return () => abort.abort();
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

async function readEvents(body: ReadableStream<Uint8Array>, onEvent: (event: StreamEvent) => void): Promise<void> {
  const parser = new EventParser(onEvent);
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parser.feed(decoder.decode(value, { stream: true }));
  }
}

/** Splits the text of an event stream into events; data that is not JSON stays text. */
export class EventParser {
  private rest = '';
  private type = 'message';
  private data: string[] = [];

  constructor(private readonly onEvent: (event: StreamEvent) => void) {}

  feed(text: string): void {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    for (const line of lines) this.line(line.endsWith('\r') ? line.slice(0, -1) : line);
  }

  private line(line: string): void {
    if (line === '') {
      if (this.data.length > 0) this.onEvent({ type: this.type, data: parsed(this.data.join('\n')) });
      this.type = 'message';
      this.data = [];
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') this.type = value;
    else if (field === 'data') this.data.push(value);
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
