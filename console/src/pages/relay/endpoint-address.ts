import { useRead, type Schemas } from '../../api/client';
import { send, type ConfigurationObject } from '../../api/objects';
import { useCaller } from '../../api/session';

interface Setting {
  key: string;
  value: unknown;
}

interface List<T> {
  data: T[];
}

const defaultPath = '/ws/';

/** Where clients reach relay endpoints: the address of a WebSocket listener, without the id. */
export function useRelayBase(): string | undefined {
  const caller = useCaller();
  const isOnNode = caller.role !== null;
  const listeners = useRead(
    ['listeners'],
    (signal) => send<List<Schemas['Listener']>>('GET', '/api/v1/listeners', { signal }),
    { enabled: isOnNode },
  );
  const paths = useRead(
    ['settings', 'relay_path'],
    (signal) => send<List<Setting>>('GET', '/api/v1/settings?key_contains=relay_path', { signal }),
    { enabled: isOnNode },
  );
  // Listeners are a matter of the node; members of a namespace get the usual address.
  if (!isOnNode) return `${scheme()}://${location.hostname}:8083${defaultPath}`;
  if (!listeners.data || !paths.data) return undefined;
  const pathOf = (name: string) => {
    const value = paths.data.data.find(({ key }) => key === `listener.${name}.relay_path`)?.value;
    return typeof value === 'string' ? value : defaultPath;
  };
  const usable = listeners.data.data.filter(
    ({ protocol, running, name }) => running && (protocol === 'ws' || protocol === 'wss') && pathOf(name) !== 'off',
  );
  // A page that was loaded with TLS may only open connections with TLS.
  const best = usable.find(({ protocol }) => protocol === scheme()) ?? usable[0];
  if (!best) return '';
  const port = best.address.split(':').pop();
  return `${best.protocol}://${location.hostname}:${port}${pathOf(best.name)}`;
}

const scheme = () => (location.protocol === 'https:' ? 'wss' : 'ws');

export const endpointsPath = '/api/v1/endpoints';

export type RelayEndpoint = Schemas['RelayEndpoint'] & ConfigurationObject;
/** In a cluster, with the nodes that did not answer. */
export type EndpointStatus = Schemas['EndpointStatus'] & { missing_nodes?: string[] };

export const endpointHref = (id: string) => `/relay/${encodeURIComponent(id)}`;
