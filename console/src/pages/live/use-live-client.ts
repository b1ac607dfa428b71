import { useCallback, useEffect, useRef, useState } from 'react';
import type { MqttClient } from 'mqtt';
import { openMqtt, type MqttLogin } from '../../api/mqtt';
import { MessageBuffer } from './message-buffer';

export type LiveState = 'idle' | 'connecting' | 'connected' | 'waiting';

export interface LiveClient {
  state: LiveState;
  problem: string | null;
  /** The filter that is subscribed. */
  filter: string | null;
  buffer: MessageBuffer;
  start: (login: MqttLogin, filter: string, qos: 0 | 1 | 2) => void;
  stop: () => void;
  /** The connected client, if there is one. */
  client: () => MqttClient | null;
}

/** One connection to the broker with one subscription; it ends with the page. */
export function useLiveClient(): LiveClient {
  const [state, setState] = useState<LiveState>('idle');
  const [problem, setProblem] = useState<string | null>(null);
  const [filter, setFilter] = useState<string | null>(null);
  const [buffer] = useState(() => new MessageBuffer());
  const current = useRef<MqttClient | null>(null);
  const attempt = useRef(0);

  const stop = useCallback(() => {
    attempt.current += 1;
    current.current?.end(true);
    current.current = null;
    setState('idle');
    setFilter(null);
  }, []);

  const start = useCallback(
    (login: MqttLogin, wanted: string, qos: 0 | 1 | 2) => {
      stop();
      const own = attempt.current;
      setState('connecting');
      setProblem(null);
      setFilter(wanted);
      void openMqtt(login).then(
        (client) => {
          if (own !== attempt.current) {
            client.end(true);
            return;
          }
          current.current = client;
          // A rejection of the first attempt is final; an interruption later is not.
          let hasConnected = false;
          client.on('connect', () => {
            hasConnected = true;
            setState('connected');
            setProblem(null);
            client.subscribe(wanted, { qos }, (error, granted) => {
              const rejected = granted?.find((each) => each.qos >= 128);
              if (error || rejected) setProblem(error?.message ?? `${rejected?.topic}: ${rejected?.qos}`);
            });
          });
          client.on('error', (error) => {
            setProblem(error.message);
            if (hasConnected) return;
            client.end(true);
            setState('idle');
          });
          client.on('close', () => setState((previous) => (previous === 'idle' ? 'idle' : 'waiting')));
          client.on('message', (topic, payload, packet) =>
            buffer.add({
              atMs: Date.now(),
              topic,
              payload,
              qos: packet.qos,
              retain: packet.retain,
              ...(packet.properties?.contentType ? { contentType: packet.properties.contentType } : {}),
            }),
          );
        },
        (error: Error) => {
          setProblem(error.message);
          setState('idle');
        },
      );
    },
    [buffer, stop],
  );

  useEffect(() => stop, [stop]);
  const client = useCallback(() => (current.current?.connected ? current.current : null), []);
  return { state, problem, filter, buffer, start, stop, client };
}
