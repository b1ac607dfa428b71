import { Text } from '@mantine/core';
import { Plural, Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Link } from 'wouter';
import { api, unwrap, useRead, type Schemas } from '../../api/client';
import { useDescriptions } from '../../api/descriptions';
import { useList, useWholeList } from '../../api/objects';
import { formatDate, formatNumber } from '../../format';
import { Panel } from '../../ui/page';
import { ErrorState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { SeverityBadge } from '../alarms/severity';
import { SinkStateBadge } from '../connectors/sink-state';
import { LimitBar, limitAmount, limitsPath, nearLimit } from '../settings/limits';
import { useCertificates } from '../settings/listener-objects';
import { StateBadge } from '../../ui/state-badge';

const refreshMs = 10_000;
/** Alarms, and limits, that the page names; links lead to the others. */
const maxShown = 5;
/** Time before the expiry of a certificate in which it needs attention. */
const expirySoonMs = 30 * 86_400_000;

const share = ({ utilisation }: Schemas['LimitUsage']) => utilisation ?? 0;

/** Those with a maximum, the most used first. */
function useLimits() {
  const limits = useWholeList<Schemas['LimitUsage']>(limitsPath, { every: refreshMs });
  const rows = limits.data?.filter(({ limit }) => limit !== null).sort((a, b) => share(b) - share(a));
  return { ...limits, rows };
}

/** Certificates of listeners and uploaded ones that have expired or soon will, the first to expire first. */
function useExpiring(): { rows?: { name: string; expiresMs: number }[]; error: Error | null } {
  const listeners = useRead(['listeners'], (signal) => unwrap(api.GET('/api/v1/listeners', { signal })), {
    every: refreshMs,
  });
  const stored = useCertificates();
  const error = listeners.error ?? stored.error;
  if (!listeners.data || !stored.data) return { error };
  const ofListeners = listeners.data.data.flatMap(({ name, certificate }) =>
    certificate ? [{ name, expiresMs: certificate.not_after_ms }] : [],
  );
  const used = new Set(stored.data.flatMap(({ used_by }) => used_by));
  const rows = [
    ...stored.data.map(({ id, not_after_ms }) => ({ name: id, expiresMs: not_after_ms ?? Infinity })),
    // A certificate that was uploaded is listed once, not once for each of its listeners.
    ...ofListeners.filter(({ name }) => !used.has(name)),
  ]
    .filter(({ expiresMs }) => expiresMs < Date.now() + expirySoonMs)
    .sort((a, b) => a.expiresMs - b.expiresMs);
  return { rows, error };
}

/** What somebody should look at: alarms, sinks that fail, limits that are almost reached, certificates that expire, damage. */
export function Attention() {
  const translate = useDescriptions();
  const alarms = useList<Schemas['Alarm']>(
    '/api/v1/alarms',
    { state: 'ACTIVE_UNACK' },
    { every: refreshMs, pageSize: maxShown },
  );
  const sinks = useList<Schemas['SinkStatus']>('/api/v1/sink-status', {}, { every: refreshMs });
  const limits = useLimits();
  const near = (limits.rows ?? []).filter((limit) => share(limit) >= nearLimit);
  const failing = (sinks.rows ?? []).filter(({ state }) => !['running', 'starting', 'disabled'].includes(state));
  const expiring = useExpiring();
  const node = useRead(['node'], (signal) => unwrap(api.GET('/api/v1/node', { signal })), { every: refreshMs });
  const damaged = node.data?.quarantined ?? 0;
  const shown = (alarms.rows ?? []).slice(0, maxShown);
  const entries: Entry[] = [
    ...(damaged > 0
      ? [
          {
            key: 'quarantine',
            state: (
              <StateBadge health="critical">
                <Trans>data lost</Trans>
              </StateBadge>
            ),
            subject: (
              <Link href="/settings?tab=quarantine" className="link">
                <Plural value={damaged} one="# damaged part was set aside" other="# damaged parts were set aside" />
              </Link>
            ),
          },
        ]
      : []),
    ...(expiring.rows ?? []).slice(0, maxShown).map(({ name, expiresMs }) => ({
      key: `certificate ${name}`,
      state: (
        <StateBadge health={expiresMs < Date.now() ? 'critical' : 'warning'}>
          {expiresMs < Date.now() ? <Trans>expired</Trans> : <Trans>expires</Trans>}
        </StateBadge>
      ),
      subject: (
        <Link href="/settings?tab=listeners" className="link">
          <Trans>Certificate {name}</Trans>
        </Link>
      ),
      details: formatDate(expiresMs),
    })),
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
    ...near.slice(0, maxShown).map((limit) => ({
      key: `limit ${limit.setting}`,
      state: (
        <StateBadge health={share(limit) >= 1 ? 'critical' : 'warning'}>
          {formatNumber(share(limit) * 100)} %
        </StateBadge>
      ),
      subject: <LimitLink limit={limit} />,
      details: translate(limit.help),
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
  // Nothing is well as long as it is not known.
  const quarantine = { rows: node.data, error: node.error };
  const needed = [alarms, sinks, limits, expiring, quarantine];
  const isLoaded = needed.every(({ rows }) => rows !== undefined);
  const failed = needed.find(({ rows, error }) => rows === undefined && error)?.error;
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
      {failed ? (
        <ErrorState error={failed} />
      ) : !isLoaded ? (
        <Loading lines={3} />
      ) : entries.length === 0 ? (
        <StateBadge health="good">
          <Trans>No alarms to acknowledge, no failing sinks, no limits almost reached, no expiring certificates</Trans>
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
  const limits = useLimits();
  return (
    <Panel
      title={<Trans>Most used limits</Trans>}
      actions={
        <Link href="/settings?tab=limits" className="link">
          <Trans>All limits</Trans>
        </Link>
      }
    >
      <div className="usage">
        {limits.rows === undefined && !limits.error && <Loading lines={maxShown} />}
        {(limits.rows ?? []).slice(0, maxShown).map((limit) => (
          <div key={limit.setting} className="usage-row">
            <LimitLink limit={limit} />
            <LimitBar limit={limit} />
            <Text span size="sm" className="right">
              <Trans>
                {limitAmount(limit, limit.used)} of {limitAmount(limit, limit.limit ?? 0)}
              </Trans>
            </Text>
          </div>
        ))}
      </div>
    </Panel>
  );
}

function LimitLink({ limit: { setting, help } }: { limit: Schemas['LimitUsage'] }) {
  const translate = useDescriptions();
  return (
    <Link
      href={`/settings?setting=${encodeURIComponent(setting)}`}
      className="link mono ellipsis"
      title={`${setting}: ${translate(help)}`}
    >
      {setting}
    </Link>
  );
}
