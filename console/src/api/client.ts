/** The typed client of the node's HTTP API, and hooks to read from it. */

import {
  keepPreviousData,
  QueryClient,
  useInfiniteQuery,
  useMutation,
  useQuery,
  useQueryClient,
  type UseQueryResult,
} from '@tanstack/react-query';
import createClient, { type FetchResponse } from 'openapi-fetch';
import { t } from '@lingui/core/macro';
import { useMemo } from 'react';
import type { components, paths } from './schema';
import { authorizedFetch } from './session';

export type Schemas = components['schemas'];

export const api = createClient<paths>({ baseUrl: '/', fetch: (request) => authorizedFetch(request) });

/** A response that is not 2xx (RFC 9457), or no response at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    detail: string,
    /** The parameter or field of the request that is wrong. */
    readonly field?: string,
  ) {
    super(detail);
  }
}

/** No response: the node is stopped, or the network is interrupted. */
export const unreachable = () => new ApiError(0, t`The node cannot be reached.`);

interface Problem {
  detail?: string;
  title?: string;
  parameter?: string;
}

export async function problemOf(response: Response, problem?: unknown): Promise<ApiError> {
  const body = (problem ?? (await response.json().catch(() => null))) as Problem | null;
  const detail = body?.detail ?? body?.title ?? response.statusText;
  return new ApiError(response.status, detail || `HTTP ${response.status}`, body?.parameter);
}

/** The data of a response, or an [`ApiError`]. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export async function unwrap<T extends FetchResponse<any, any, any>>(
  call: Promise<T>,
): Promise<NonNullable<T['data']>> {
  let result: T;
  try {
    result = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw unreachable();
  }
  if (!result.response.ok) throw await problemOf(result.response, result.error);
  return result.data as NonNullable<T['data']>;
}

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      // A page that is open while the node restarts recovers by itself.
      retry: (failures, error) =>
        error instanceof ApiError && (error.status === 0 || error.status === 503) && failures < 3,
      refetchOnWindowFocus: true,
    },
  },
});

export interface Page<T> {
  data: T[];
  next: string | null;
  /** Nodes of a cluster that did not answer, for lists of all nodes. */
  missing_nodes?: string[];
}

/** Reads `key` and keeps it fresh while the page is visible. */
export function useRead<T>(
  key: readonly unknown[],
  read: (signal: AbortSignal) => Promise<T>,
  options: { every?: number; enabled?: boolean; keep?: boolean; isConstant?: boolean } = {},
): UseQueryResult<T, Error> {
  return useQuery({
    queryKey: key,
    queryFn: ({ signal }) => read(signal),
    refetchInterval: options.every ?? false,
    enabled: options.enabled ?? true,
    ...(options.keep ? { placeholderData: keepPreviousData } : {}),
    // What cannot change while the node runs.
    ...(options.isConstant ? { staleTime: Infinity } : {}),
  });
}

const maxRefreshedPages = 5;

/** Reads a list page by page; `read` gets the cursor of the page. */
export function usePages<T>(
  key: readonly unknown[],
  read: (after: string | undefined, signal: AbortSignal) => Promise<Page<T>>,
  options: { every?: number; enabled?: boolean } = {},
) {
  const query = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => read(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    // All pages would be read again: of a long list that somebody has scrolled through, that is too much.
    refetchInterval: ({ state }) =>
      (state.data?.pages.length ?? 0) > maxRefreshedPages ? false : (options.every ?? false),
    refetchOnWindowFocus: ({ state }) => (state.data?.pages.length ?? 0) <= maxRefreshedPages,
    enabled: options.enabled ?? true,
    placeholderData: keepPreviousData,
  });
  const pages = query.data?.pages;
  const rows = useMemo(() => pages?.flatMap((page) => page.data), [pages]);
  return { ...query, rows };
}

/** A change; afterwards everything below the given keys is read again. */
export function useChange<Input, Output>(
  change: (input: Input) => Promise<Output>,
  invalidates: readonly (readonly unknown[])[],
) {
  const client = useQueryClient();
  return useMutation<Output, Error, Input>({
    mutationFn: change,
    onSuccess: async () => {
      await Promise.all(invalidates.map((queryKey) => client.invalidateQueries({ queryKey })));
    },
  });
}
