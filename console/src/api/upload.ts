/** Resumable uploads (tus 1.0) of this page. They continue while other pages are open, and after the network failed. */

import { useSyncExternalStore } from 'react';
import { ApiError, problemOf, queryClient } from './client';
import { authorizedFetch } from './session';

export type UploadState = 'running' | 'paused' | 'waiting' | 'done' | 'failed';

export interface Upload {
  readonly id: number;
  readonly name: string;
  readonly size: number;
  readonly state: UploadState;
  readonly sentBytes: number;
  readonly bytesPerSecond: number;
  /** Why it failed or waits. */
  readonly problem?: string;
}

const path = '/api/v1/tus';
const version = { 'tus-resumable': '1.0.0' };
const chunkBytes = 4 * 1024 * 1024;
const firstDelayMs = 1_000;
const maxDelayMs = 30_000;

let uploads: readonly Upload[] = [];
let lastId = 0;
const running = new Map<number, UploadRun>();
const listeners = new Set<() => void>();

function publish(next: readonly Upload[]): void {
  uploads = next;
  listeners.forEach((listener) => listener());
}

function change(id: number, fields: Partial<Upload>): void {
  publish(uploads.map((each) => (each.id === id ? { ...each, ...fields } : each)));
}

export function useUploads(): readonly Upload[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => uploads,
  );
}

/** The value of `Upload-Metadata`: names and Base64 of UTF-8. */
export function metadataOf(fields: Record<string, string>): string {
  return Object.entries(fields)
    .filter(([, value]) => value !== '')
    .map(([name, value]) => {
      const bytes = Array.from(new TextEncoder().encode(value), (byte) => String.fromCharCode(byte)).join('');
      return `${name} ${btoa(bytes)}`;
    })
    .join(',');
}

export function startUpload(file: File, namespace?: string): void {
  lastId += 1;
  const id = lastId;
  publish([{ id, name: file.name, size: file.size, state: 'running', sentBytes: 0, bytesPerSecond: 0 }, ...uploads]);
  const run = new UploadRun(id, file, namespace);
  running.set(id, run);
  window.addEventListener('beforeunload', warn);
  void run.send();
}

export const pauseUpload = (id: number) => running.get(id)?.pause();
export const resumeUpload = (id: number) => void running.get(id)?.send();

/** Ends an upload and removes what the node has of it; one that has ended only leaves the list. */
export async function removeUpload(id: number): Promise<void> {
  const run = running.get(id);
  finish(id);
  publish(uploads.filter((each) => each.id !== id));
  await run?.cancel();
}

function finish(id: number): void {
  running.delete(id);
  if (running.size === 0) window.removeEventListener('beforeunload', warn);
}

/** The browser asks before the page is left while uploads run. */
function warn(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

class UploadRun {
  private url: string | undefined;
  private abort: AbortController | undefined;

  constructor(
    private readonly id: number,
    private readonly file: File,
    private readonly namespace: string | undefined,
  ) {}

  pause(): void {
    this.abort?.abort();
    change(this.id, { state: 'paused', bytesPerSecond: 0 });
  }

  async cancel(): Promise<void> {
    this.abort?.abort();
    if (this.url) await authorizedFetch(this.url, { method: 'DELETE', headers: version }).catch(() => undefined);
  }

  /** Sends what the node does not have yet; waits and repeats while the node cannot be reached. */
  async send(): Promise<void> {
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    change(this.id, { state: 'running', problem: undefined });
    let delay = firstDelayMs;
    while (!abort.signal.aborted) {
      try {
        await this.sendRest(abort.signal, () => (delay = firstDelayMs));
        change(this.id, { state: 'done', sentBytes: this.file.size, bytesPerSecond: 0 });
        finish(this.id);
        void queryClient.invalidateQueries({ queryKey: ['/api/v1/files'] });
        return;
      } catch (error) {
        if (abort.signal.aborted) return;
        const problem = (error as Error).message;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 423) {
          change(this.id, { state: 'failed', problem, bytesPerSecond: 0 });
          return;
        }
        change(this.id, { state: 'waiting', problem, bytesPerSecond: 0 });
        await new Promise((resolve) => setTimeout(resolve, delay));
        delay = Math.min(delay * 2, maxDelayMs);
      }
    }
  }

  private async sendRest(signal: AbortSignal, onProgress: () => void): Promise<void> {
    this.url ??= await this.create(signal);
    let offset = await this.offset(this.url, signal);
    change(this.id, { state: 'running', problem: undefined, sentBytes: offset });
    while (offset < this.file.size) {
      const startedAt = performance.now();
      const chunk = this.file.slice(offset, offset + chunkBytes);
      const response = await authorizedFetch(this.url, {
        method: 'PATCH',
        headers: { ...version, 'upload-offset': String(offset), 'content-type': 'application/offset+octet-stream' },
        body: chunk,
        signal,
      });
      if (!response.ok) throw await problemOf(response);
      offset = Number(response.headers.get('upload-offset'));
      const seconds = (performance.now() - startedAt) / 1000;
      change(this.id, { sentBytes: offset, bytesPerSecond: chunk.size / Math.max(seconds, 0.001) });
      onProgress();
    }
  }

  private async create(signal: AbortSignal): Promise<string> {
    const query = this.namespace ? `?namespace=${encodeURIComponent(this.namespace)}` : '';
    const response = await authorizedFetch(`${path}${query}`, {
      method: 'POST',
      headers: {
        ...version,
        'upload-length': String(this.file.size),
        'upload-metadata': metadataOf({ filename: this.file.name, filetype: this.file.type }),
      },
      signal,
    });
    if (!response.ok) throw await problemOf(response);
    const location = response.headers.get('location');
    if (!location) throw new ApiError(502, 'The answer has no Location.');
    return new URL(location, response.url).pathname;
  }

  private async offset(url: string, signal: AbortSignal): Promise<number> {
    const response = await authorizedFetch(url, { method: 'HEAD', headers: version, signal });
    if (!response.ok) throw await problemOf(response);
    return Number(response.headers.get('upload-offset'));
  }
}
