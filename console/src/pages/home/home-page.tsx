import { Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { lazy, Suspense, useEffect, useState, type ReactNode } from 'react';
import { Link } from 'wouter';
import { api, unwrap, useRead } from '../../api/client';
import { openStream } from '../../api/stream';
import { formatBytes, formatCompact, formatDuration, formatNumber } from '../../format';
import { Chart } from '../../ui/chart';
import { Page, Panel } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { ErrorState, Loading } from '../../ui/states';
import { appended, gauges, rates, windowSeconds, type Sample } from './rates';

const FirstSteps = lazy(() => import('./first-steps'));

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
  const times = samples.map((sample) => sample.atMs);
  const latest = samples[samples.length - 1]?.metrics;
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
  const isEmpty = devices.data?.devices === 0 && latest !== undefined && latest.connects_total === 0;
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
      <div className="grid">
        <Panel title={<Trans>Messages per second</Trans>}>
          <Chart
            label={t`Messages received and sent per second`}
            times={times}
            spanMs={windowSeconds * 1000}
            syncKey="home"
            series={[
              { label: t`in`, values: received },
              { label: t`out`, values: sent, colour: 2 },
            ]}
          />
        </Panel>
        <Panel title={<Trans>Connections</Trans>}>
          <Chart
            label={t`Connections`}
            times={times}
            spanMs={windowSeconds * 1000}
            syncKey="home"
            series={[{ label: t`connections`, values: gauges(samples, 'connections') }]}
          />
        </Panel>
        <Panel title={<Trans>Traffic per second</Trans>}>
          <Chart
            label={t`Bytes received and sent per second`}
            times={times}
            spanMs={windowSeconds * 1000}
            syncKey="home"
            format={formatBytes}
            minTop={1024}
            series={[
              { label: t`in`, values: rates(samples, 'bytes_received_total') },
              { label: t`out`, values: rates(samples, 'bytes_sent_total'), colour: 2 },
            ]}
          />
        </Panel>
        <Panel title={<Trans>Dropped messages per second</Trans>}>
          <Chart
            label={t`Dropped messages per second`}
            times={times}
            spanMs={windowSeconds * 1000}
            syncKey="home"
            series={[{ label: t`dropped`, values: rates(samples, 'messages_dropped_total'), colour: 3 }]}
          />
        </Panel>
      </div>
      <Text size="xs" c="dimmed">
        <Trans>The charts show the last five minutes, since this page was opened.</Trans>
      </Text>
    </Page>
  );
}

function formatRate(value: number | null | undefined): string | undefined {
  return value == null ? undefined : formatCompact(value);
}

function Tile({ label, value, unit, href }: { label: string; value: ReactNode; unit?: ReactNode; href?: string }) {
  return (
    <div className="tile">
      <div className="tile-label">
        {href ? (
          <Link href={href} className="link">
            {label}
          </Link>
        ) : (
          label
        )}
      </div>
      <div className="tile-value">
        {value ?? '–'} {unit && <span className="tile-unit">{unit}</span>}
      </div>
    </div>
  );
}
