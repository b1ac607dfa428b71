import { useRead, type Schemas } from '../../api/client';
import { send } from '../../api/objects';

export type Certificate = Schemas['StoredCertificate'];

export const listenersPath = '/api/v1/listeners';
export const certificatesPath = '/api/v1/certificates';

export function useCertificates() {
  return useRead(
    ['certificates'],
    async (signal) => (await send<{ data: Certificate[] }>('GET', certificatesPath, { signal })).data,
    { every: 10_000 },
  );
}
