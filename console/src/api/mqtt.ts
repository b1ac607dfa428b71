/** An MQTT 5 client in the browser, over a WebSocket listener of the node. The library is loaded when it is first used. */

import { t } from '@lingui/core/macro';
import type { IClientOptions, MqttClient } from 'mqtt';
import type { Schemas } from './client';

export interface MqttLogin {
  url: string;
  clientId?: string;
  username?: string;
  /** Kept in memory only. */
  password?: string;
}

export interface LiveMessage {
  /** Ascending in the order of arrival. */
  id: number;
  atMs: number;
  topic: string;
  payload: Uint8Array;
  qos: number;
  retain: boolean;
  contentType?: string;
}

/** The WebSocket listeners that this page could reach, best first. */
export function webSocketAddresses(listeners: Schemas['Listener'][], page: Location = location): string[] {
  const wanted = page.protocol === 'https:' ? ['wss'] : ['ws', 'wss'];
  return listeners
    .filter((listener) => listener.running && wanted.includes(listener.protocol) && listener.address.includes(':'))
    .sort((a, b) => wanted.indexOf(a.protocol) - wanted.indexOf(b.protocol))
    .map((listener) => {
      const at = listener.address.lastIndexOf(':');
      const host = listener.address.slice(0, at);
      const isAny = ['0.0.0.0', '[::]', '127.0.0.1', '[::1]'].includes(host);
      return `${listener.protocol}://${isAny ? page.hostname : host}:${listener.address.slice(at + 1)}/mqtt`;
    });
}

const connectTimeoutMs = 10_000;

export async function openMqtt(login: MqttLogin): Promise<MqttClient> {
  const { default: mqtt } = await import('mqtt');
  const options: IClientOptions = {
    protocolVersion: 5,
    clientId: login.clientId || `console-${crypto.getRandomValues(new Uint32Array(1))[0]?.toString(36)}`,
    clean: true,
    reconnectPeriod: 2_000,
    connectTimeout: connectTimeoutMs,
    // The policy of the page permits no worker from a blob, which the other variants use.
    timerVariant: 'native',
    ...(login.username ? { username: login.username } : {}),
    ...(login.password ? { password: login.password } : {}),
  };
  return mqtt.connect(login.url, options);
}

/** Connects, or says why not. A client that could not connect is closed. */
export async function connected(login: MqttLogin): Promise<MqttClient> {
  const client = await openMqtt(login);
  const { url } = login;
  return new Promise((resolve, reject) => {
    const fail = (error: Error) => {
      client.end(true);
      reject(error);
    };
    client.once('connect', () => resolve(client));
    client.once('error', fail);
    client.once('close', () => fail(new Error(t`There is no connection to ${url}.`)));
  });
}

const decoder = new TextDecoder('utf-8', { fatal: true });

/** The payload as text; `null` for bytes that are not UTF-8. */
export function payloadText(payload: Uint8Array): string | null {
  try {
    return decoder.decode(payload);
  } catch {
    return null;
  }
}

export function payloadBase64(payload: Uint8Array): string {
  let binary = '';
  for (const byte of payload) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** JSON with indentation, or the text as it is; bytes as hexadecimal digits. */
export function prettyPayload(payload: Uint8Array): string {
  const text = payloadText(payload);
  if (text === null) {
    const shown = Array.from(payload.slice(0, 1024), (byte) => byte.toString(16).padStart(2, '0')).join(' ');
    return payload.length > 1024 ? `${shown} …` : shown;
  }
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
