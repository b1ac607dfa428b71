import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { openStream, type StreamEvent } from './stream';

const requests: { path: string; isOpen: boolean; send: (text: string) => void }[] = [];
const page = Object.assign(new EventTarget(), { visibilityState: 'visible' });

vi.mock('./session', () => ({
  authorizedFetch: (path: string, { signal }: { signal: AbortSignal }) => {
    const body = new TransformStream<Uint8Array, Uint8Array>();
    const writer = body.writable.getWriter();
    const send = (text: string) => void writer.write(new TextEncoder().encode(text));
    const request = { path, isOpen: true, send };
    requests.push(request);
    signal.addEventListener('abort', () => {
      request.isOpen = false;
      void writer.abort().catch(() => undefined);
    });
    return Promise.resolve(new Response(body.readable));
  },
}));

const openPaths = () => requests.filter(({ isOpen }) => isOpen).map(({ path }) => path);
const passed = (ms: number) => vi.advanceTimersByTimeAsync(ms);

async function show(visibilityState: 'visible' | 'hidden'): Promise<void> {
  page.visibilityState = visibilityState;
  page.dispatchEvent(new Event('visibilitychange'));
  await passed(0);
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', page);
  requests.length = 0;
});

afterEach(async () => {
  await show('visible');
  vi.useRealTimers();
});

test('the streams of a page that stays hidden are closed, and opened again when it is shown', async () => {
  const onReopen = vi.fn();
  const close = openStream({ path: '/a', onEvent: () => undefined, onReopen });
  await passed(0);
  await show('hidden');
  await passed(5_000);
  expect(openPaths()).toEqual(['/a']);
  await passed(6_000);
  expect(openPaths()).toEqual([]);
  await passed(60_000);
  expect(requests).toHaveLength(1);
  expect(onReopen).not.toHaveBeenCalled();
  await show('visible');
  expect(openPaths()).toEqual(['/a']);
  expect(onReopen).toHaveBeenCalledOnce();
  close();
  expect(openPaths()).toEqual([]);
});

test('a page that is hidden only for a moment keeps its streams', async () => {
  const close = openStream({ path: '/a', onEvent: () => undefined });
  await passed(0);
  await show('hidden');
  await passed(5_000);
  await show('visible');
  await passed(60_000);
  expect(requests).toHaveLength(1);
  close();
});

test('several followers share a stream', async () => {
  const received: [string, StreamEvent][] = [];
  const follow = (name: string) => openStream({ path: '/a', onEvent: (event) => received.push([name, event]) });
  const closes = [follow('one'), follow('two')];
  await passed(0);
  requests[0]?.send('data: 1\n\n');
  await passed(0);
  expect(received.map(([name, { data }]) => [name, data])).toEqual([
    ['one', 1],
    ['two', 1],
  ]);
  closes[0]?.();
  expect(openPaths()).toEqual(['/a']);
  closes[1]?.();
  expect(openPaths()).toEqual([]);
});

test('a page leaves connections to its requests', async () => {
  const closes = ['/1', '/2', '/3', '/4', '/5'].map((path) => openStream({ path, onEvent: () => undefined }));
  await passed(0);
  expect(openPaths()).toEqual(['/1', '/2', '/3', '/4']);
  closes[0]?.();
  await passed(0);
  expect(openPaths()).toEqual(['/2', '/3', '/4', '/5']);
  closes.forEach((close) => close());
});
