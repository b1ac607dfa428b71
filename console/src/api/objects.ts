/** Configuration objects: users, products, notifications and so on have the same five routes, versions and origins. */

import { problemOf, unreachable, useChange, usePages, useRead, type Page } from './client';
import { authorizedFetch } from './session';

/** What the node adds to every configuration object. */
export interface ObjectFrame {
  /** `api`, or where the configuration declares it; only objects of the API can be changed here. */
  origin: string;
  /** The place of the declaration. */
  declared_at?: string;
  version?: number;
  created_at_ms?: number;
  updated_at_ms?: number;
}

export type Fields = Record<string, unknown>;
export type ConfigurationObject = ObjectFrame & Fields;

const frameFields = ['origin', 'declared_at', 'version', 'created_at_ms', 'updated_at_ms'];

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

interface SendOptions {
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

async function request(method: Method, path: string, options: SendOptions): Promise<Response> {
  let response: Response;
  try {
    response = await authorizedFetch(path, {
      method,
      signal: options.signal,
      headers: { ...(options.body === undefined ? {} : { 'content-type': 'application/json' }), ...options.headers },
      ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw unreachable();
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** A call whose path is chosen at run time; the typed client knows only literal paths. */
export async function send<T>(method: Method, path: string, options: SendOptions = {}): Promise<T> {
  const response = await request(method, path, options);
  return (response.status === 204 ? null : await response.json()) as T;
}

/** A value that is no configuration object, with its version. */
export interface Versioned<T> {
  value: T;
  etag: string;
}

/** Reads a value whose version is only an ETag. */
export async function readVersioned<T>(path: string, signal?: AbortSignal): Promise<Versioned<T>> {
  const response = await request('GET', path, { signal });
  return { value: (await response.json()) as T, etag: response.headers.get('etag') ?? '*' };
}

/** Changes the version that was read: a change by somebody else in the meantime is rejected with 412. */
export const ifMatch = ({ etag }: Versioned<unknown>) => ({ 'if-match': etag });

/** A path with a query of those parameters that have a value. */
export function withQuery(
  path: string,
  parameters: Record<string, string | number | boolean | null | undefined>,
): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== '') query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

const pageSize = 500;

/** A list that can be read page by page: `path` with a query of `filters`. */
export function useList<T>(
  path: string,
  filters: Record<string, string | number | boolean | null | undefined> = {},
  options: { every?: number; enabled?: boolean; pageSize?: number } = {},
) {
  return usePages<T>(
    [path, 'list', filters],
    (after, signal) =>
      send<Page<T>>('GET', withQuery(path, { ...filters, after, limit: options.pageSize ?? pageSize }), { signal }),
    options,
  );
}

/** A list that the node answers as a whole. */
export function useWholeList<T>(path: string, options: { every?: number } = {}) {
  return useRead([path, 'list'], async (signal) => (await send<{ data: T[] }>('GET', path, { signal })).data, options);
}

export const objectPath = (path: string, id: string) => `${path}/${encodeURIComponent(id)}`;

export function useObject<T = ConfigurationObject>(path: string, id: string, options: { every?: number } = {}) {
  return useRead([path, 'one', id], (signal) => send<T>('GET', objectPath(path, id), { signal }), options);
}

/** The fields that a PUT of the object takes. */
export function writable(object: ConfigurationObject, schemaFields: string[]): Fields {
  return Object.fromEntries(
    Object.entries(object).filter(([name]) => schemaFields.includes(name) && !frameFields.includes(name)),
  );
}

interface Save {
  /** Absent: a new object. */
  id?: string;
  /** The version that was edited: a change by somebody else in the meantime is rejected with 412. */
  version?: number;
  body: Fields;
}

export function useSave<T = ConfigurationObject>(path: string) {
  return useChange<Save, T>(
    ({ id, version, body }) =>
      id === undefined
        ? send<T>('POST', path, { body })
        : send<T>('PUT', objectPath(path, id), {
            body,
            headers: version === undefined ? {} : { 'if-match': `"${version}"` },
          }),
    [[path]],
  );
}

/** Whether the API may change the object; devices have no origin, because no configuration declares them. */
export const isStored = (object: Partial<ObjectFrame>) => object.origin === undefined || object.origin === 'api';
