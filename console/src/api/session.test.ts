import { beforeEach, expect, test, vi } from 'vitest';
import { authorizedFetch, logIn, logOut, onCallerChange, startSession } from './session';

/** A node with one session at a time. */
const node = { name: '', isOpen: false, requests: [] as string[] };

function answer(input: RequestInfo | URL, init?: RequestInit): Response {
  const path = input instanceof Request ? new URL(input.url).pathname : String(input);
  const method = input instanceof Request ? input.method : (init?.method ?? 'GET');
  const token = Response.json({ token: 'token', expires_in_s: 3600 });
  const rejected = new Response(null, { status: 401 });
  if (path === '/api/v1/console-session/refresh') return node.isOpen ? token : rejected;
  if (path === '/api/v1/console-session') {
    node.isOpen = method === 'POST';
    if (method === 'POST') node.name = (JSON.parse(String(init?.body)) as { username: string }).username;
    return token;
  }
  if (path === '/api/v1/me') return Response.json({ name: node.name, role: 'admin', authentication: 'token' });
  node.requests.push(`${method} ${path} by ${node.isOpen ? node.name : 'nobody'}`);
  return node.isOpen ? Response.json({}) : rejected;
}

const save = () => authorizedFetch('http://node/api/v1/rules/a', { method: 'PUT', body: '{}' });
const discard = vi.fn();

beforeEach(async () => {
  vi.stubGlobal('fetch', (input: RequestInfo | URL, init?: RequestInit) => Promise.resolve(answer(input, init)));
  onCallerChange(discard);
  Object.assign(node, { name: 'ann', isOpen: true, requests: [] });
  await startSession();
  discard.mockClear();
});

test('a request of an ended session waits until its caller logs in again', async () => {
  node.isOpen = false;
  const saved = save();
  await vi.waitFor(() => expect(node.requests).toEqual(['PUT /api/v1/rules/a by nobody']));
  await logIn('ann', '');
  expect((await saved).status).toBe(200);
  expect(node.requests).toEqual(['PUT /api/v1/rules/a by nobody', 'PUT /api/v1/rules/a by ann']);
  expect(discard).not.toHaveBeenCalled();
});

test('another caller sends no request of the one before, and does not see their data', async () => {
  node.isOpen = false;
  const saved = save();
  await vi.waitFor(() => expect(node.requests).toHaveLength(1));
  // The session of the page has ended, too.
  await new Promise((resolve) => setTimeout(resolve, 10));
  const later = save();
  await logIn('bob', '');
  expect([(await saved).status, (await later).status]).toEqual([401, 401]);
  expect(node.requests).toHaveLength(1);
  expect(discard).toHaveBeenCalledOnce();
});

test('a log out discards what was read', async () => {
  await logOut();
  expect(discard).toHaveBeenCalledOnce();
});
