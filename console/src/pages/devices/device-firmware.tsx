import { Progress } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useWholeList } from '../../api/objects';
import { Panel } from '../../ui/page';
import { StateBadge, type Health } from '../../ui/state-badge';
import { Ago } from '../../ui/time';

type Assigned = Schemas['AssignedFirmware'];
type State = NonNullable<Assigned['state']>;

const refreshMs = 5_000;
const health: Record<State, Health> = {
  queued: 'unknown',
  initiated: 'unknown',
  downloading: 'unknown',
  downloaded: 'unknown',
  verified: 'unknown',
  updating: 'unknown',
  updated: 'good',
  failed: 'critical',
};

/** The packages that the device installs, and how far it is; nothing where none is assigned. */
export function DeviceFirmware({ device }: { device: string }) {
  const list = useWholeList<Assigned>(`/api/v1/devices/${encodeURIComponent(device)}/firmware`, { every: refreshMs });
  const rows = list.data ?? [];
  if (rows.length === 0) return null;
  return (
    <Panel title={<Trans>Firmware and software</Trans>} flush>
      <div className="table-scroller">
        <table className="data-table">
          <thead>
            <tr>
              <th scope="col">
                <Trans>Package</Trans>
              </th>
              <th scope="col">
                <Trans>State</Trans>
              </th>
              <th scope="col">
                <Trans>Installed version</Trans>
              </th>
              <th scope="col">
                <Trans>Assigned version</Trans>
              </th>
              <th scope="col">
                <Trans>Changed</Trans>
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.type}>
                <td>
                  <Link href={`/firmware?edit=${encodeURIComponent(row.package)}`} className="link">
                    {row.package}
                  </Link>
                </td>
                <td>
                  <InstallState row={row} />
                </td>
                <td>{row.current_version ?? '–'}</td>
                <td>{row.version}</td>
                <td>
                  <Ago ms={row.updated_at_ms} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function InstallState({ row }: { row: Assigned }) {
  const { t } = useLingui();
  if (row.state === null) {
    return (
      <StateBadge health="unknown">
        <Trans>nothing reported yet</Trans>
      </StateBadge>
    );
  }
  return (
    <div>
      <StateBadge health={health[row.state]}>
        <StateName state={row.state} />
      </StateBadge>
      {row.state === 'downloading' && row.progress !== null && (
        <Progress value={row.progress} mt={4} aria-label={t`Progress of ${row.package}`} />
      )}
      {row.error && <div className="state-critical">{row.error}</div>}
    </div>
  );
}

function StateName({ state }: { state: State }): ReactNode {
  switch (state) {
    case 'queued':
      return <Trans>waiting for the device</Trans>;
    case 'initiated':
      return <Trans>notified</Trans>;
    case 'downloading':
      return <Trans>downloading</Trans>;
    case 'downloaded':
      return <Trans>downloaded</Trans>;
    case 'verified':
      return <Trans>verified</Trans>;
    case 'updating':
      return <Trans>installing</Trans>;
    case 'updated':
      return <Trans>installed</Trans>;
    default:
      return <Trans>failed</Trans>;
  }
}
