/** Latest values of a card, whatever they come from. */

import type { CardData, TopicStatus } from './card-data';
import type { Card, ValueState } from './dashboard';

export interface CardValue {
  /** The device or topic; empty for metrics of the node. */
  subject: string;
  /** The key or metric; empty for topics. */
  key: string;
  /** Distinguishes it among the values of the card: an attribute may have the name of a key. */
  id: string;
  value: unknown;
  tsMs: number;
}

/** What was published on a topic: a number if it is one, so that gauges show it. */
function payloadOf({ payload, payload_encoding, is_truncated }: TopicStatus): unknown {
  if (payload_encoding !== 'text') return `${payload} (base64)`;
  if (is_truncated) return `${payload}…`;
  return payload.trim() !== '' && Number.isFinite(Number(payload)) ? Number(payload) : payload;
}

const textOf = (value: unknown) => (typeof value === 'string' ? value : JSON.stringify(value));

/** What a value means, if the card says it. */
export function stateOf(value: unknown, states: readonly ValueState[] = []): ValueState | undefined {
  const equal = states.find(({ equals }) => equals !== undefined && equals === textOf(value));
  if (equal || typeof value !== 'number') return equal;
  return states
    .filter(({ from }) => from !== undefined && from <= value)
    .reduce<ValueState | undefined>(
      (best, each) => ((best?.from ?? -Infinity) <= (each.from ?? 0) ? each : best),
      undefined,
    );
}

/** The parts of a gauge from 0 to 1 that have a state. */
export function gaugeBands(min: number, max: number, states: readonly ValueState[] = []) {
  const part = (value: number) => Math.min(1, Math.max(0, (value - min) / (max - min || 1)));
  const starts = states.flatMap(({ from, state }) => (from === undefined ? [] : [{ from, state }]));
  starts.sort((a, b) => a.from - b.from);
  return starts
    .map(({ from, state }, index) => ({ state, begin: part(from), end: part(starts[index + 1]?.from ?? max) }))
    .filter(({ begin, end }) => end > begin);
}

/** Latest values in the order of the keys, topics or metrics that the card names. */
export function valuesOf(card: Card, data: CardData): CardValue[] {
  return data.sources.flatMap((each, index): CardValue[] => {
    const source = card.sources[index];
    if (each.type === 'topics' && source?.type === 'topics') {
      const known = new Map(each.topics.map((status) => [status.topic, status]));
      return source.topics.flatMap((topic) => {
        const status = known.get(topic);
        if (!status) return [];
        const value = card.config.shows === 'rate' ? status.messages_per_s : payloadOf(status);
        return [{ subject: topic, key: '', id: `${index} ${topic}`, value, tsMs: status.last_at_ms }];
      });
    }
    if (each.type === 'node') {
      return each.metrics.flatMap(({ name, value }) =>
        value === null ? [] : [{ subject: '', key: name, id: `${index} ${name}`, value, tsMs: data.at_ms }],
      );
    }
    const hasKeys = source?.type === 'telemetry' || source?.type === 'attributes';
    if (!hasKeys || each.type !== source.type) return [];
    return each.latest.flatMap(({ device, values }) =>
      source.keys.flatMap((key) => {
        const found = values[key];
        const id = `${index} ${device} ${key}`;
        return found ? [{ subject: device, key, id, value: found.value, tsMs: found.ts_ms }] : [];
      }),
    );
  });
}

/** Entered states as they are stored: a number is a limit, everything else a text; without either there is no state. */
export function storedStates(entered: readonly ValueState[]): ValueState[] {
  return entered.flatMap(({ equals, from, ...rest }): ValueState[] => {
    const text = equals?.trim() ?? '';
    if (text !== '' && !Number.isFinite(Number(text))) return [{ equals: text, ...rest }];
    const limit = text === '' ? from : Number(text);
    return limit === undefined ? [] : [{ from: limit, ...rest }];
  });
}
