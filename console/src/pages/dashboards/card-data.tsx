/** The data of cards: read with the caller's role, or with the token of a share link. */

import { createContext, useContext } from 'react';
import { problemOf, unreachable, useRead, type Schemas } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { niceInterval } from '../telemetry/series';
import { rangeOf, type Card, type CardConfig } from './dashboard';

export interface LatestOfDevice {
  device: string;
  values: Record<string, { ts_ms: number; value: unknown }>;
}

export interface DeviceStatus {
  device: string;
  name: string;
  product: string;
  state: Schemas['Device']['state'];
}

export interface TopicStatus {
  topic: string;
  messages_per_s: number;
  last_at_ms: number;
  payload: string;
  payload_encoding: 'text' | 'base64';
  is_truncated: boolean;
}

export interface MetricValues {
  name: string;
  value: number | null;
  avg: (number | null)[];
}

export type SourceData =
  | { type: 'telemetry'; latest: LatestOfDevice[]; intervals: Schemas['KeyInterval'][]; is_truncated: boolean }
  | { type: 'attributes'; latest: LatestOfDevice[]; is_truncated: boolean }
  | { type: 'devices'; devices: DeviceStatus[]; is_truncated: boolean }
  | { type: 'alarms'; alarms: Schemas['Alarm'][]; is_truncated: boolean }
  | { type: 'topics'; topics: TopicStatus[] }
  | { type: 'node'; metrics: MetricValues[]; ts_ms: number[] }
  | { type: 'problem'; detail: string };

export interface CardData {
  at_ms: number;
  sources: SourceData[];
  /** Nodes of a cluster that did not answer, whose values are missing. A share link has no names of nodes. */
  missing_nodes?: string[];
}

export interface DashboardSource {
  /** Distinguishes dashboards, and versions whose cards read something else. */
  key: string;
  cardPath: (card: string) => string;
  read: <T>(path: string, signal: AbortSignal) => Promise<T>;
  /** Whether nothing can be changed: a share link. */
  isShared: boolean;
}

export function dashboardSource(id: string, version: number | undefined): DashboardSource {
  return {
    key: `${id} ${version}`,
    cardPath: (card) => `/api/v1/dashboards/${encodeURIComponent(id)}/cards/${encodeURIComponent(card)}/data`,
    read: (path, signal) => send('GET', path, { signal }),
    isShared: false,
  };
}

export function sharedSource(token: string): DashboardSource {
  return {
    key: 'shared',
    cardPath: (card) => `/api/v1/kiosk/cards/${encodeURIComponent(card)}/data`,
    async read(path, signal) {
      let response: Response;
      try {
        response = await fetch(path, { signal, headers: { authorization: `Bearer ${token}` } });
      } catch (error) {
        if (signal.aborted) throw error;
        throw unreachable();
      }
      if (!response.ok) throw await problemOf(response);
      return response.json();
    },
    isShared: true,
  };
}

interface DashboardContextValue {
  source: DashboardSource;
  spanMs: number;
  /** Whether the caller may send commands to the devices of the dashboard. */
  mayControl: boolean;
}

export const DashboardContext = createContext<DashboardContextValue | null>(null);

export function useDashboardContext() {
  const context = useContext(DashboardContext);
  if (!context) throw new Error('outside of a dashboard');
  return context;
}

const latestEveryMs = 2_000;
const slowestEveryMs = 60_000;
const linePoints = 200;
const barPoints = 40;

/** The length of the intervals of a chart. */
export const chartIntervalMs = (spanMs: number, config: CardConfig) =>
  config.chart === 'bar' ? niceInterval(spanMs, barPoints) : Math.max(1_000, Math.ceil(spanMs / linePoints));

/** The data of a card, read again every two seconds, or as often as a chart gets a new point. */
export function useCardData({ id, kind, config }: Card, isEnabled: boolean) {
  const { source, spanMs } = useDashboardContext();
  const isChart = kind === 'chart';
  const rangeNow = () => rangeOf(config, spanMs, Date.now());
  const [from, to] = rangeNow();
  const lengthMs = to - from;
  const intervalMs = chartIntervalMs(lengthMs, config);
  return useRead<CardData>(
    ['dashboard-card', source.key, id, isChart ? [config.from_ms, lengthMs, intervalMs] : 0],
    (signal) => {
      const [from_ms, to_ms] = rangeNow();
      const query = isChart ? { from_ms, to_ms, interval_ms: intervalMs } : {};
      return source.read(withQuery(source.cardPath(id), query), signal);
    },
    {
      every: isChart ? Math.min(Math.max(latestEveryMs, intervalMs), slowestEveryMs) : latestEveryMs,
      enabled: isEnabled,
      keep: true,
    },
  );
}
