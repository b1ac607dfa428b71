import { problemOf } from '../api/client';
import { authorizedFetch } from '../api/session';

/** Saves what the API returns for a path. Throws the problem that it reports. */
export async function downloadFrom(path: string, name: string): Promise<void> {
  const response = await authorizedFetch(path);
  if (!response.ok) throw await problemOf(response);
  download(name, await response.blob(), response.headers.get('content-type') ?? undefined);
}

/** Offers text or bytes as a file to save. */
export function download(name: string, content: BlobPart, type = 'text/plain'): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
