/** The session of this page: who is logged in, and the access token, which is kept in memory only. */

import { useSyncExternalStore } from 'react';

export type Role = 'viewer' | 'operator' | 'admin';
export type NamespaceRole = 'viewer' | 'operator' | 'owner';

export interface Caller {
  name: string;
  /** The node-wide role; `null`: roles in namespaces only. */
  role: Role | null;
  namespaces: { namespace: string; role: NamespaceRole }[];
  authentication: 'token' | 'api_key' | 'local_token' | 'anonymous';
  /** Somebody else knows the password: the node answers nothing before it is changed. */
  mustChangePassword: boolean;
}

export type Session =
  | { state: 'starting' }
  | { state: 'logged-out' }
  /** Ended by the node. The page waits until the caller logs in again, so that nothing that was typed is lost. */
  | { state: 'expired'; caller: Caller }
  | { state: 'ready'; caller: Caller };

interface TokenAnswer {
  token: string;
  expires_in_s: number;
}

const path = '/api/v1/console-session';
let session: Session = { state: 'starting' };
let token: string | null = null;
let expiresAt = 0;
let refreshing: Promise<boolean> | null = null;
let discardData: () => void = () => undefined;
const listeners = new Set<() => void>();

function set(next: Session): void {
  session = next;
  listeners.forEach((listener) => listener());
}

export function useSession(): Session {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => session,
  );
}

/** The caller; only below the login page. */
export function useCaller(): Caller {
  const current = useSession();
  if (current.state !== 'ready' && current.state !== 'expired') throw new Error('nobody is logged in');
  return current.caller;
}

/** Sets what discards the data that was read with the role of a caller, for the next one. */
export function onCallerChange(discard: () => void): void {
  discardData = discard;
}

function take(answer: TokenAnswer): void {
  token = answer.token;
  expiresAt = Date.now() + answer.expires_in_s * 1000;
}

/** Gets the next token with the cookie; concurrent calls share one request. */
function refresh(): Promise<boolean> {
  refreshing ??= (async () => {
    try {
      const response = await fetch(`${path}/refresh`, { method: 'POST' });
      if (!response.ok) return false;
      take((await response.json()) as TokenAnswer);
      return true;
    } finally {
      refreshing = null;
    }
  })();
  return refreshing;
}

/**
 * `fetch` with the token. A token that expires soon, or was rejected, is replaced first. If the session has ended, the request
 * waits until the same caller logs in again.
 */
export async function authorizedFetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  if (token !== null && Date.now() > expiresAt - 30_000) await refresh().catch(() => false);
  const request = new Request(input, init);
  const send = (copy: Request) => {
    if (token !== null) copy.headers.set('authorization', `Bearer ${token}`);
    return fetch(copy);
  };
  if (session.state === 'expired' && !(await resumed(session.caller.name, request.signal)))
    return new Response(null, { status: 401 });
  const response = await send(request.clone());
  if (response.status !== 401 || session.state === 'starting' || session.state === 'logged-out') return response;
  const { name } = session.caller;
  if (session.state === 'ready' && (await refresh().catch(() => false))) return send(request);
  expire();
  return (await resumed(name, request.signal)) ? send(request) : response;
}

function expire(): void {
  if (session.state !== 'ready') return;
  token = null;
  set({ state: 'expired', caller: session.caller });
}

/** Waits while the session is expired; whether it is then again one of this caller. */
function resumed(name: string, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      listeners.delete(check);
      signal.removeEventListener('abort', abort);
    };
    const check = () => {
      if (session.state === 'expired') return;
      stop();
      resolve(session.state === 'ready' && session.caller.name === name);
    };
    const abort = () => {
      stop();
      reject(new DOMException('The request was aborted.', 'AbortError'));
    };
    listeners.add(check);
    signal.addEventListener('abort', abort);
    if (signal.aborted) abort();
    else check();
  });
}

async function readCaller(): Promise<Caller | null> {
  const headers: HeadersInit = token === null ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch('/api/v1/me', { headers });
  if (!response.ok) return null;
  const me = await response.json();
  return {
    name: me.name,
    role: me.role,
    namespaces: me.namespaces ?? [],
    authentication: me.authentication,
    mustChangePassword: me.must_change_password,
  };
}

/** At the start of the page: continues a session, or works without one where the node allows it. */
export async function startSession(): Promise<void> {
  await refresh().catch(() => false);
  const caller = await readCaller().catch(() => null);
  set(caller ? { state: 'ready', caller } : { state: 'logged-out' });
}

export class LoginError extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

export async function logIn(username: string, password: string): Promise<void> {
  const response = await fetch(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ username, password }),
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new LoginError(response.status, problem?.detail ?? response.statusText);
  }
  take((await response.json()) as TokenAnswer);
  const caller = await readCaller();
  if (session.state === 'expired' && session.caller.name !== caller?.name) discardData();
  set(caller ? { state: 'ready', caller } : { state: 'logged-out' });
}

/** Changes the caller's password and continues with a new session; the change ends all others. */
export async function changePassword(username: string, current: string, next: string): Promise<void> {
  const response = await authorizedFetch('/api/v1/me/password', {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ current_password: current, password: next }),
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new LoginError(response.status, problem?.detail ?? response.statusText);
  }
  await logIn(username, next);
}

export async function logOut(): Promise<void> {
  await fetch(path, { method: 'DELETE' }).catch(() => undefined);
  token = null;
  set({ state: 'logged-out' });
  discardData();
}

const ranks = { viewer: 0, operator: 1, admin: 2 } as const;

/** Whether the caller may do what needs this node-wide role. */
export function mayOnNode(caller: Caller, role: Role): boolean {
  return caller.role !== null && ranks[caller.role] >= ranks[role];
}

const namespaceRanks = { viewer: 0, operator: 1, owner: 2 } as const;

/** Whether the caller may do what needs this role in a namespace; without one: in any of the caller's. */
export function mayInNamespace(caller: Caller, role: NamespaceRole, namespace?: string): boolean {
  if (mayOnNode(caller, role === 'owner' ? 'admin' : role)) return true;
  return caller.namespaces.some(
    (grant) =>
      (namespace === undefined || grant.namespace === namespace) && namespaceRanks[grant.role] >= namespaceRanks[role],
  );
}
