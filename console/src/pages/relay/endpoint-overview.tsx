import { Badge } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useEffect, useState, type ReactNode } from 'react';
import { Link } from 'wouter';
import { formatBytes, formatCompact, formatNumber } from '../../format';
import { Chart } from '../../ui/chart';
import { CopyText } from '../../ui/copy';
import { Facts, Panel } from '../../ui/page';
import { Ago } from '../../ui/time';
import type { EndpointStatus, RelayEndpoint } from './endpoint-address';
import { ModeName } from './endpoint-state';

const spanMs = 5 * 60_000;
const maxSamples = 200;

interface Sample {
  atMs: number;
  messages: number;
  connections: number;
}

/** Numbers of the endpoint since the page was opened. */
function useSamples(status: EndpointStatus | undefined, readAt: number): Sample[] {
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    if (!status) return;
    const sample = { atMs: readAt, messages: status.total_messages, connections: status.current_connections };
    setSamples((previous) => [...previous.filter(({ atMs }) => atMs < readAt), sample].slice(-maxSamples));
  }, [status, readAt]);
  return samples;
}

interface OverviewProps {
  endpoint: RelayEndpoint;
  status: EndpointStatus | undefined;
  address: string | undefined;
  readAt: number;
}

export function EndpointOverview({ endpoint, status, address, readAt }: OverviewProps) {
  const { t } = useLingui();
  const samples = useSamples(status, readAt);
  const times = samples.map(({ atMs }) => atMs);
  const rates = samples.map((sample, index) => {
    const before = samples[index - 1];
    if (!before) return null;
    return Math.max(0, ((sample.messages - before.messages) * 1000) / (sample.atMs - before.atMs));
  });
  return (
    <div className="page">
      <div className="tiles">
        <Tile label={t`Connections`} value={status && formatNumber(status.current_connections)} />
        <Tile label={t`Messages per minute`} value={status && formatCompact(status.messages_per_minute)} />
        <Tile label={t`Messages in total`} value={status && formatCompact(status.total_messages)} />
        <Tile label={t`Bytes in total`} value={status && formatBytes(status.total_bytes)} />
        <Tile
          label={t`Dropped messages`}
          value={
            status && (
              <span className={status.dropped_messages > 0 ? 'state-warning' : undefined}>
                {formatCompact(status.dropped_messages)}
              </span>
            )
          }
        />
        <Tile label={t`Rejected connections`} value={status && formatCompact(status.rejected_connections)} />
      </div>
      <div className="grid">
        <Panel title={<Trans>Messages per second</Trans>}>
          <Chart
            label={t`Messages per second`}
            times={times}
            spanMs={spanMs}
            syncKey="endpoint"
            minTop={5}
            series={[{ label: t`messages`, values: rates }]}
          />
        </Panel>
        <Panel title={<Trans>Connections</Trans>}>
          <Chart
            label={t`Connections`}
            times={times}
            spanMs={spanMs}
            syncKey="endpoint"
            minTop={5}
            series={[{ label: t`connections`, values: samples.map(({ connections }) => connections), colour: 2 }]}
          />
        </Panel>
      </div>
      <div className="grid">
        <Panel title={<Trans>Address</Trans>}>
          {address ? (
            <CopyText text={address} />
          ) : address === undefined ? null : (
            <Trans>No WebSocket listener serves relay endpoints.</Trans>
          )}
          <p className="field-help">
            {endpoint.has_access_key ? (
              <Trans>
                Clients present the access key as the query parameter key, or as the sub-protocol key.KEY together with
                tidegate-relay.
              </Trans>
            ) : (
              <Trans>There is no access key: whoever knows the address can use the endpoint.</Trans>
            )}
          </p>
        </Panel>
        <Panel title={<Trans>Endpoint</Trans>}>
          <Facts
            rows={[
              [<Trans>Id</Trans>, <span className="mono">{endpoint.id}</span>],
              [<Trans>Namespace</Trans>, endpoint.namespace ?? 'default'],
              [<Trans>Mode</Trans>, <ModeName mode={endpoint.mode} />],
              [<Trans>Access key</Trans>, endpoint.has_access_key ? <Trans>required</Trans> : <Trans>none</Trans>],
              [
                <Trans>Allowed origins</Trans>,
                endpoint.allowed_origins && endpoint.allowed_origins.length > 0 ? (
                  endpoint.allowed_origins.map((origin) => (
                    <Badge key={origin} variant="default" mr={4} tt="none">
                      {origin}
                    </Badge>
                  ))
                ) : (
                  <Trans>all</Trans>
                ),
              ],
              [<Trans>Maximum connections</Trans>, formatNumber(endpoint.max_connections ?? 0)],
              [<Trans>Maximum message</Trans>, formatBytes(endpoint.max_message_bytes ?? 0)],
              [
                <Trans>MQTT topic</Trans>,
                <span className="mono">
                  $relay/
                  {endpoint.id}
                </span>,
              ],
              [
                <Trans>Product of devices</Trans>,
                <Link href={`/products/${encodeURIComponent(productOf(endpoint))}`} className="link">
                  {productOf(endpoint)}
                </Link>,
              ],
              [<Trans>Created</Trans>, <Ago ms={endpoint.created_at_ms} />],
              [<Trans>Last active</Trans>, <Ago ms={status?.last_active_at_ms} />],
            ]}
          />
        </Panel>
      </div>
    </div>
  );
}

/** The product whose devices the connections of the endpoint become. */
export const productOf = (endpoint: RelayEndpoint) => endpoint.product ?? `relay-${endpoint.id}`;

function Tile({ label, value }: { label: string; value: ReactNode }) {
  return (
    <div className="tile">
      <div className="tile-label">{label}</div>
      <div className="tile-value">{value ?? '–'}</div>
    </div>
  );
}
