import { SegmentedControl, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { lazy, Suspense, useEffect, useMemo, useState, type ReactNode } from 'react';
import { api, unwrap, useRead } from '../../api/client';
import { openStream } from '../../api/stream';
import { formatBytes, formatCompact, formatDuration, formatNumber } from '../../format';
import { Chart } from '../../ui/chart';
import { Page, Panel } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { Attention, Limits } from './attention';
import { Storage } from './storage';
import { Tile } from './tile';
import { appended, hasUse, joined, rates, windowSeconds, type NodeHistory, type Sample } from './rates';

const FirstSteps = lazy(() => import('./first-steps'));

const chartMetrics = [
  'messages_received_per_s',
  'messages_sent_per_s',
  'connections',
  'bytes_received_per_s',
  'bytes_sent_per_s',
  'session_queue_messages',
];

const usageMetrics = ['connections', 'messages_received_per_s'];

interface ChartDefinition {
  title: ReactNode;
  label: string;
  format?: (value: number) => string;
  minTop?: number;
  series: { label: string; name: string; colour?: number }[];
}

const hourMs = 3_600_000;

/** What the charts can show; without an interval, only what arrives while the page is open. */
const ranges: Record<string, { spanMs: number; intervalMs: number }> = {
  '5m': { spanMs: windowSeconds * 1000, intervalMs: 0 },
  '1h': { spanMs: hourMs, intervalMs: 15_000 },
  '24h': { spanMs: 24 * hourMs, intervalMs: 180_000 },
  '7d': { spanMs: 7 * 24 * hourMs, intervalMs: 1_260_000 },
};

/** What the node has recorded in this time, read again with each interval but at most once a minute for long ones. */
function useHistory(spanMs: number, intervalMs: number): NodeHistory | undefined {
  const history = useRead(
    ['node-history', spanMs],
    (signal) => {
      const query = {
        metrics: chartMetrics.join(','),
        from_ms: Math.floor((Date.now() - spanMs) / intervalMs) * intervalMs,
        interval_ms: intervalMs,
      };
      return unwrap(api.GET('/api/v1/node/history', { params: { query }, signal }));
    },
    { every: Math.min(intervalMs, 60_000), enabled: intervalMs > 0 },
  );
  return intervalMs > 0 ? history.data : undefined;
}

/** Whether no client has used the node as far as its history reaches; its counters begin again with each start. */
function useIsUnused(isUnusedSinceStart: boolean): boolean {
  const spanMs = 7 * 24 * hourMs;
  const history = useRead(
    ['node-history', 'use'],
    (signal) => {
      const query = { metrics: usageMetrics.join(','), from_ms: Date.now() - spanMs, interval_ms: hourMs };
      return unwrap(api.GET('/api/v1/node/history', { params: { query }, signal }));
    },
    { enabled: isUnusedSinceStart },
  );
  if (!isUnusedSinceStart || history.isPending) return false;
  // A node without a history has none of earlier times.
  return !history.data || !hasUse(history.data);
}

const statsPath = '/api/v1/events?types=stats&stats_interval_s=1';

function useStats(): Sample[] {
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(
    () =>
      openStream({
        path: statsPath,
        onEvent: ({ type, data }) => {
          if (type !== 'stats') return;
          const stats = data as { at_ms: number; metrics: Record<string, number> };
          setSamples((previous) => appended(previous, { atMs: stats.at_ms, metrics: stats.metrics }));
        },
      }),
    [],
  );
  return samples;
}

export default function HomePage() {
  const { t } = useLingui();
  const samples = useStats();
  const node = useRead(['node'], (signal) => unwrap(api.GET('/api/v1/node', { signal })), { every: 10_000 });
  const devices = useRead(['device-counts'], (signal) => unwrap(api.GET('/api/v1/device-counts', { signal })), {
    every: 10_000,
  });
  const alarms = useRead(['alarm-counts'], (signal) => unwrap(api.GET('/api/v1/alarm-counts', { signal })), {
    every: 10_000,
  });
  const [range, setRange] = useUrlState('range', '1h');
  const { spanMs, intervalMs } = ranges[range] ?? ranges['1h']!;
  const history = useHistory(spanMs, intervalMs);
  const chart = useMemo(() => joined(history, samples, chartMetrics), [history, samples]);
  const latest = samples[samples.length - 1]?.metrics;
  const isUnused = useIsUnused(latest?.connects_total === 0);
  const received = rates(samples, 'messages_received_total');
  const sent = rates(samples, 'messages_sent_total');
  const now = (values: (number | null)[]) => values[values.length - 1];

  if (node.error && !node.data) {
    return (
      <Page title={t`Home`}>
        <ErrorState error={node.error} retry={() => void node.refetch()} />
      </Page>
    );
  }
  const charts: ChartDefinition[] = [
    {
      title: <Trans>Messages per second</Trans>,
      label: t`Messages received and sent per second`,
      series: [
        { label: t`in`, name: 'messages_received_per_s' },
        { label: t`out`, name: 'messages_sent_per_s', colour: 2 },
      ],
    },
    {
      title: <Trans>Connections</Trans>,
      label: t`Connections`,
      minTop: 5,
      series: [{ label: t`connections`, name: 'connections' }],
    },
    {
      title: <Trans>Traffic per second</Trans>,
      label: t`Bytes received and sent per second`,
      format: formatBytes,
      minTop: 1024,
      series: [
        { label: t`in`, name: 'bytes_received_per_s' },
        { label: t`out`, name: 'bytes_sent_per_s', colour: 2 },
      ],
    },
    {
      title: <Trans>Messages waiting for sessions</Trans>,
      label: t`Messages waiting in the queues of sessions`,
      minTop: 5,
      series: [{ label: t`waiting`, name: 'session_queue_messages', colour: 3 }],
    },
  ];
  const isEmpty = isUnused && devices.data?.devices === 0 && alarms.data?.active === 0 && !node.data?.quarantined;
  return (
    <Page
      title={t`Home`}
      aside={
        node.data && (
          <StateBadge health={node.data.ready ? 'good' : 'warning'}>
            {node.data.ready ? (
              <Trans>Running for {formatDuration(node.data.uptime_s)}</Trans>
            ) : (
              node.data.not_ready_reason
            )}
          </StateBadge>
        )
      }
      description={node.data && <Trans>Tidegate {node.data.version}</Trans>}
    >
      {isEmpty && (
        <Suspense fallback={<Loading />}>
          <FirstSteps />
        </Suspense>
      )}
      <div className="tiles">
        <Tile
          label={t`Connected clients`}
          href="/clients"
          value={latest && formatNumber(latest.clients_connected ?? 0)}
        />
        <Tile label={t`Messages in`} unit={t`per second`} value={formatRate(now(received))} />
        <Tile label={t`Messages out`} unit={t`per second`} value={formatRate(now(sent))} />
        <Tile
          label={t`Devices online`}
          href="/devices"
          value={devices.data && formatNumber(devices.data.online)}
          unit={devices.data && t`of ${formatNumber(devices.data.devices)}`}
        />
        <Tile
          label={t`Active alarms`}
          value={
            alarms.data && (
              <span className={alarms.data.active > 0 ? 'state-critical' : undefined}>
                {formatNumber(alarms.data.active)}
              </span>
            )
          }
          unit={alarms.data && t`${formatNumber(alarms.data.unacknowledged)} not acknowledged`}
        />
        <Tile label={t`Queued for sessions`} value={latest && formatCompact(latest.session_queue_messages ?? 0)} />
      </div>
      {!isEmpty && (
        <div className="grid">
          <Attention />
          <Limits />
        </div>
      )}
      {!isEmpty && <Storage />}
      <div className="row between">
        <Title order={2}>
          <Trans>Over time</Trans>
        </Title>
        <SegmentedControl
          size="xs"
          aria-label={t`Time range`}
          value={range}
          onChange={setRange}
          data={[
            { value: '5m', label: t`5 min` },
            { value: '1h', label: t`1 h` },
            { value: '24h', label: t`24 h` },
            { value: '7d', label: t`7 d` },
          ]}
        />
      </div>
      <div className="grid">
        {charts.map(({ title, label, series, format, minTop }) => (
          <Panel key={label} title={title}>
            <Chart
              label={label}
              times={chart.times}
              spanMs={spanMs}
              syncKey="home"
              format={format}
              minTop={minTop}
              series={series.map(({ name, ...each }) => ({ ...each, values: chart.values[name] ?? [] }))}
            />
          </Panel>
        ))}
      </div>
    </Page>
  );
}

function formatRate(value: number | null | undefined): string | undefined {
  return value == null ? undefined : formatCompact(value);
}
