import { Progress, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList, useWholeList } from '../../api/objects';
import { formatBytes, formatCompact, formatNumber } from '../../format';
import { Panel } from '../../ui/page';
import { Ago } from '../../ui/time';
import { SeverityBadge } from '../alarms/severity';
import { SinkStateBadge } from '../connectors/sink-state';
import { StateBadge } from '../../ui/state-badge';

const refreshMs = 10_000;
/** Alarms, and limits, that the page names; links lead to the others. */
const maxShown = 5;
/** From this share on, a limit needs attention. */
const nearLimit = 0.8;

const share = ({ utilisation }: Schemas['LimitUsage']) => utilisation ?? 0;

function useLimits() {
  const limits = useWholeList<Schemas['LimitUsage']>('/api/v1/limits', { every: refreshMs });
  return [...(limits.data ?? [])].filter(({ limit }) => limit !== null).sort((a, b) => share(b) - share(a));
}

/** What somebody should look at: alarms, sinks that fail, limits that are almost reached. */
export function Attention() {
  const alarms = useList<Schemas['Alarm']>(
    '/api/v1/alarms',
    { state: 'ACTIVE_UNACK' },
    { every: refreshMs, pageSize: maxShown },
  );
  const sinks = useList<Schemas['SinkStatus']>('/api/v1/sink-status', {}, { every: refreshMs });
  const limits = useLimits().filter((limit) => share(limit) >= nearLimit);
  const failing = (sinks.rows ?? []).filter(({ state }) => !['running', 'starting', 'disabled'].includes(state));
  const shown = (alarms.rows ?? []).slice(0, maxShown);
  const entries: Entry[] = [
    ...failing.slice(0, maxShown).map((sink) => ({
      key: `sink ${sink.name}`,
      state: <SinkStateBadge status={sink} />,
      subject: (
        <Link href={`/connectors/sinks/${encodeURIComponent(sink.name)}`} className="link">
          <Trans>Sink {sink.name}</Trans>
        </Link>
      ),
      details: sink.problem ?? sink.last_error,
      since: sink.failing_since_ms,
    })),
    ...limits.slice(0, maxShown).map((limit) => ({
      key: `limit ${limit.setting}`,
      state: (
        <StateBadge health={share(limit) >= 1 ? 'critical' : 'warning'}>
          {formatNumber(share(limit) * 100)} %
        </StateBadge>
      ),
      subject: <LimitLink limit={limit} />,
      details: limit.help,
    })),
    ...shown.map((alarm) => ({
      key: `alarm ${alarm.id}`,
      state: <SeverityBadge severity={alarm.severity} />,
      subject: (
        <Link href={`/alarms?alarm=${alarm.id}`} className="link">
          {alarm.type}
        </Link>
      ),
      details: alarm.details || alarm.deviceId,
      since: alarm.raised_at_ms,
    })),
  ];
  return (
    <Panel
      title={<Trans>Needs attention</Trans>}
      actions={
        alarms.hasNextPage && (
          <Link href="/alarms" className="link">
            <Trans>All alarms</Trans>
          </Link>
        )
      }
    >
      {entries.length === 0 ? (
        <StateBadge health="good">
          <Trans>No alarms to acknowledge, no failing sinks, no limits almost reached</Trans>
        </StateBadge>
      ) : (
        <ul className="plain-list attention">
          {entries.map((entry) => (
            <li key={entry.key}>
              {entry.state}
              <span className="ellipsis">
                {entry.subject} <span className="dimmed">{entry.details}</span>
              </span>
              <span className="dimmed">{entry.since != null && <Ago ms={entry.since} />}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

interface Entry {
  key: string;
  state: ReactNode;
  subject: ReactNode;
  details?: string | null;
  since?: number | null;
}

/** The limits that are used most. */
export function Limits() {
  const { t } = useLingui();
  const limits = useLimits().slice(0, maxShown);
  return (
    <Panel title={<Trans>Most used limits</Trans>}>
      <div className="usage">
        {limits.map((limit) => {
          const show = limit.unit === 'bytes' ? formatBytes : formatCompact;
          const color = share(limit) >= nearLimit ? 'red.7' : 'tide';
          return (
            <div key={limit.setting} className="usage-row">
              <LimitLink limit={limit} />
              <Progress value={share(limit) * 100} color={color} aria-label={t`Utilisation of ${limit.setting}`} />
              <Text span size="sm" className="right">
                <Trans>
                  {show(limit.used)} of {show(limit.limit ?? 0)}
                </Trans>
              </Text>
            </div>
          );
        })}
      </div>
    </Panel>
  );
}

function LimitLink({ limit: { setting, help } }: { limit: Schemas['LimitUsage'] }) {
  return (
    <Link
      href={`/settings?setting=${encodeURIComponent(setting)}`}
      className="link mono ellipsis"
      title={`${setting}: ${help}`}
    >
      {setting}
    </Link>
  );
}
