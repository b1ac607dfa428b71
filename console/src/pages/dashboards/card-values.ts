/** Latest values of a card, whatever they come from. */

import type { CardData, TopicStatus } from './card-data';
import type { Card } from './dashboard';

export interface CardValue {
  /** The device or topic; empty for metrics of the node. */
  subject: string;
  /** The key or metric; empty for topics. */
  key: string;
  value: unknown;
  tsMs: number;
}

/** What was published on a topic: a number if it is one, so that gauges show it. */
function payloadOf({ payload, payload_encoding, is_truncated }: TopicStatus): unknown {
  if (payload_encoding !== 'text') return `${payload} (base64)`;
  if (is_truncated) return `${payload}…`;
  return payload.trim() !== '' && Number.isFinite(Number(payload)) ? Number(payload) : payload;
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
        return [{ subject: topic, key: '', value, tsMs: status.last_at_ms }];
      });
    }
    if (each.type === 'node') {
      return each.metrics.flatMap(({ name, value }) =>
        value === null ? [] : [{ subject: '', key: name, value, tsMs: data.at_ms }],
      );
    }
    if (each.type !== 'telemetry' || source?.type !== 'telemetry') return [];
    return each.latest.flatMap(({ device, values }) =>
      source.keys.flatMap((key) => {
        const found = values[key];
        return found ? [{ subject: device, key, value: found.value, tsMs: found.ts_ms }] : [];
      }),
    );
  });
}
