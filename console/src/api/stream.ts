/** Server-sent events read with `fetch`, so that the token travels in a header. */

import { authorizedFetch } from './session';

export interface StreamEvent {
  type: string;
  data: unknown;
}

interface StreamOptions {
  path: string;
  onEvent: (event: StreamEvent) => void;
  /** After a time without the stream: what changed in it has to be read. */
  onReopen?: () => void;
  /** How long the stream stays open while the page is hidden. */
  hiddenMs?: number;
}

const firstDelay = 500;
const maxDelay = 10_000;
const defaultHiddenMs = 10_000;
/**
 * Streams of a page that are open at the same time; others wait for one of them to close. A browser opens six connections
 * to a node over HTTP/1, for all of its pages together.
 */
const maxOpen = 4;

/** The open streams by path: each is read once for all that follow it. */
const streams = new Map<string, { followers: Set<StreamOptions>; abort: AbortController }>();

/** Reads events until the returned function is called; reconnects after a failure, more slowly each time. */
export function openStream(options: StreamOptions): () => void {
  const { path } = options;
  let stream = streams.get(path);
  if (!stream) {
    stream = { followers: new Set(), abort: new AbortController() };
    streams.set(path, stream);
    void follow(path, stream.followers, stream.abort.signal);
  }
  const { followers, abort } = stream;
  followers.add(options);
  return () => {
    followers.delete(options);
    if (followers.size > 0) return;
    abort.abort();
    if (streams.get(path)?.abort === abort) streams.delete(path);
  };
}

async function follow(path: string, followers: ReadonlySet<StreamOptions>, closed: AbortSignal): Promise<void> {
  let delay = firstDelay;
  let isFirst = true;
  // The followers are added after this call.
  await Promise.resolve();
  while (!closed.aborted) {
    await whenVisible(closed);
    const release = await place(closed);
    const abort = new AbortController();
    const end = () => abort.abort();
    closed.addEventListener('abort', end);
    if (closed.aborted) end();
    const unwatch = watchHidden(() => Math.max(...[...followers].map(hiddenMsOf)), end);
    try {
      const response = await authorizedFetch(path, {
        headers: { accept: 'text/event-stream' },
        signal: abort.signal,
      });
      if (response.ok && response.body) {
        delay = firstDelay;
        if (!isFirst) followers.forEach(({ onReopen }) => onReopen?.());
        isFirst = false;
        await readEvents(response.body, (event) => followers.forEach(({ onEvent }) => onEvent(event)));
      }
    } catch {
      // Closed, hidden or failed.
    } finally {
      unwatch();
      closed.removeEventListener('abort', end);
      release();
    }
    if (abort.signal.aborted) continue;
    await pause(delay, closed);
    delay = Math.min(delay * 2, maxDelay);
  }
}

const hiddenMsOf = ({ hiddenMs = defaultHiddenMs }: StreamOptions) => hiddenMs;

/** Calls `end` once the page has been hidden for some time. */
function watchHidden(hiddenMs: () => number, end: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const check = () => {
    clearTimeout(timer);
    if (document.visibilityState === 'hidden') timer = setTimeout(end, hiddenMs());
  };
  document.addEventListener('visibilitychange', check);
  check();
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', check);
  };
}

function whenVisible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const check = () => {
      if (document.visibilityState === 'hidden' && !signal.aborted) return;
      document.removeEventListener('visibilitychange', check);
      signal.removeEventListener('abort', check);
      resolve();
    };
    document.addEventListener('visibilitychange', check);
    signal.addEventListener('abort', check);
    check();
  });
}

let open = 0;
const waiting: (() => void)[] = [];

/** Waits for a place among the open streams; the result gives it back. */
async function place(signal: AbortSignal): Promise<() => void> {
  while (open >= maxOpen && !signal.aborted) {
    await new Promise<void>((resolve) => {
      waiting.push(resolve);
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
  }
  open += 1;
  return () => {
    open -= 1;
    waiting.splice(0).forEach((resolve) => resolve());
  };
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
