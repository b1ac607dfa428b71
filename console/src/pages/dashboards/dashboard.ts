/** Dashboards as the API keeps them, and changes of their grid. */

import { t } from '@lingui/core/macro';
import type { ConfigurationObject, Fields } from '../../api/objects';
import type { Health } from '../../ui/state-badge';

export const path = '/api/v1/dashboards';
export const columns = 24;
export const rowPx = 36;

export type CardKind =
  'statistic' | 'gauge' | 'chart' | 'status' | 'table' | 'map' | 'text' | 'control' | 'live_messages';

export type AttributeScope = 'client' | 'shared' | 'server';

export type CardSource =
  | { type: 'telemetry'; device?: string; device_group?: string; keys: string[] }
  | { type: 'attributes'; device?: string; device_group?: string; scope: AttributeScope; keys: string[] }
  | { type: 'devices'; device?: string; device_group?: string }
  | { type: 'alarms'; device?: string; product?: string }
  | { type: 'topics'; topics: string[] }
  | { type: 'node'; metrics: string[] };

/** What a value means: a text that is equal, or a number that is at least `from`; of several numbers the largest counts. */
export interface ValueState {
  from?: number;
  equals?: string;
  state: Health;
  /** Instead of the value or the name of the state. */
  text?: string;
}

/** How a chart draws a key of a device. */
export interface LineStyle {
  device: string;
  key: string;
  label?: string;
  /** 1 to 6. */
  colour?: number;
}

/** Display options; the node keeps them as they are. */
export interface CardConfig {
  unit?: string;
  digits?: number;
  min?: number;
  max?: number;
  text?: string;
  states?: ValueState[];
  lines?: LineStyle[];
  chart?: 'line' | 'bar';
  /** The time range of a chart, instead of the one that is chosen above the cards: its length until now. */
  span_s?: number;
  /** A time range that does not move; both or none. */
  from_ms?: number;
  to_ms?: number;
  /** What a card of topics shows of each: the last message, or messages per second. */
  shows?: 'message' | 'rate';
  topic_filter?: string;
  control?: 'switch' | 'slider' | 'number' | 'button';
  method?: string;
}

export interface Card {
  id: string;
  kind: CardKind;
  title: string;
  x: number;
  y: number;
  w: number;
  h: number;
  sources: CardSource[];
  config: CardConfig;
}

export interface Share {
  id: string;
  description: string;
  expires_at_ms: number | null;
  created_at_ms: number;
  created_by: string;
}

export interface Dashboard {
  id: string;
  namespace: string | null;
  name: string;
  description: string;
  cards: Card[];
  shares: Share[];
  version?: number;
  origin: string;
}

export type StoredDashboard = Dashboard & ConfigurationObject;

/** What a PUT takes. */
export const bodyOf = ({ namespace, name, description, cards }: Dashboard): Fields => ({
  ...(namespace === null ? {} : { namespace }),
  name,
  description,
  cards,
});

export const sizes: Record<CardKind, { w: number; h: number }> = {
  statistic: { w: 5, h: 4 },
  gauge: { w: 5, h: 6 },
  chart: { w: 12, h: 8 },
  status: { w: 6, h: 6 },
  table: { w: 8, h: 8 },
  map: { w: 10, h: 9 },
  text: { w: 6, h: 4 },
  control: { w: 6, h: 4 },
  live_messages: { w: 12, h: 8 },
};

const overlaps = (a: Card, b: Card) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

/** Places a card; cards in its way move down. */
export function placed(cards: readonly Card[], card: Card): Card[] {
  const w = Math.min(columns, Math.max(2, card.w));
  const moved = {
    ...card,
    w,
    h: Math.max(2, card.h),
    x: Math.min(columns - w, Math.max(0, card.x)),
    y: Math.max(0, card.y),
  };
  const others = cards.filter(({ id }) => id !== card.id).sort((a, b) => a.y - b.y || a.x - b.x);
  const settled = [moved];
  for (const other of others) {
    let next = other;
    for (
      let hit = settled.find((each) => overlaps(each, next));
      hit;
      hit = settled.find((each) => overlaps(each, next))
    )
      next = { ...next, y: hit.y + hit.h };
    settled.push(next);
  }
  // In the order in which they were, which is that of the keyboard.
  return cards.some(({ id }) => id === card.id)
    ? cards.map(({ id }) => settled.find((each) => each.id === id) ?? moved)
    : [...cards.map(({ id }) => settled.find((each) => each.id === id) ?? moved), moved];
}

/** A new card below all others. */
export function newCard(cards: readonly Card[], kind: CardKind): Card {
  let number = cards.length + 1;
  while (cards.some(({ id }) => id === `card-${number}`)) number += 1;
  const y = Math.max(0, ...cards.map((card) => card.y + card.h));
  return { id: `card-${number}`, kind, title: '', x: 0, y, ...sizes[kind], sources: [], config: {} };
}

/** A dashboard from an exported file, or what is wrong with the file. */
export function imported(text: string): Fields {
  const value = JSON.parse(text) as Record<string, unknown>;
  if (typeof value !== 'object' || value === null || !Array.isArray(value.cards))
    throw new Error(t`the file has no list "cards"`);
  return { name: String(value.name ?? ''), description: String(value.description ?? ''), cards: value.cards };
}

/** The time range of a chart: its own, or else `spanMs` until now. */
export function rangeOf({ from_ms, to_ms, span_s }: CardConfig, spanMs: number, now: number): [number, number] {
  if (from_ms !== undefined && to_ms !== undefined && from_ms < to_ms) return [from_ms, to_ms];
  return [now - (span_s === undefined ? spanMs : span_s * 1_000), now];
}
