import { Trans } from '@lingui/react/macro';
import { useRead, type Schemas } from '../../api/client';
import { send } from '../../api/objects';
import { formatDuration, formatNumber, formatTime } from '../../format';
import { Facts, Panel } from '../../ui/page';
import { ErrorState, Loading } from '../../ui/states';

export function About() {
  const node = useRead(['node'], (signal) => send<Schemas['NodeInfo']>('GET', '/api/v1/node', { signal }), {
    every: 10_000,
  });
  if (node.error && !node.data) return <ErrorState error={node.error} retry={() => void node.refetch()} />;
  if (!node.data) return <Loading />;
  const { version, pid, started_at_ms, uptime_s, connections } = node.data;
  return (
    <div className="grid">
      <Panel title={<Trans>This node</Trans>}>
        <Facts
          rows={[
            [<Trans>Version</Trans>, version],
            [<Trans>Started</Trans>, formatTime(started_at_ms)],
            [<Trans>Running for</Trans>, formatDuration(uptime_s)],
            [<Trans>Process</Trans>, pid],
            [<Trans>Connections</Trans>, formatNumber(connections)],
            [<Trans>Time zone of this page</Trans>, Intl.DateTimeFormat().resolvedOptions().timeZone],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Reference</Trans>}>
        <ul className="plain-list">
          <li>
            <a className="link" href="/api/docs">
              <Trans>HTTP API of this node</Trans>
            </a>
          </li>
          <li>
            <a className="link" href="/api/v1/openapi.json">
              OpenAPI
            </a>
          </li>
          <li>
            <a className="link" href="/metrics">
              <Trans>Metrics for Prometheus</Trans>
            </a>
          </li>
        </ul>
        <p className="field-help">
          <Trans>Tidegate is free software under the Apache License 2.0.</Trans>
        </p>
      </Panel>
    </div>
  );
}
