import { api, unwrap, useRead } from './client';

/** The port of the node's MQTT listener; `undefined` until it is known, so that nobody copies a command with a wrong one. */
export function useMqttPort(): string | undefined {
  const listeners = useRead(['listeners'], (signal) => unwrap(api.GET('/api/v1/listeners', { signal })));
  if (listeners.isPending) return undefined;
  const mqtt = listeners.data?.data.find((listener) => listener.protocol === 'mqtt' && listener.running);
  return mqtt?.address.split(':').pop() ?? '1883';
}
