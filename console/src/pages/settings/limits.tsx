/** All limits of the node with how much of them is used. */

import { Progress } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import { useWholeList } from '../../api/objects';
import type { Schemas } from '../../api/client';
import { formatBytes, formatCompact, formatNumber } from '../../format';
import { DataTable, type Column } from '../../ui/data-table';
import { Description } from '../../ui/description';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';

type Limit = Schemas['LimitUsage'];

export const limitsPath = '/api/v1/limits';
/** From this share on, a limit needs attention. */
export const nearLimit = 0.8;

const refreshMs = 5_000;

export const limitAmount = ({ unit }: Limit, value: number) => (unit === 'bytes' ? formatBytes : formatCompact)(value);

export function LimitBar({ limit }: { limit: Limit }) {
  const { t } = useLingui();
  const share = limit.utilisation ?? 0;
  return (
    <Progress
      value={share * 100}
      color={share >= nearLimit ? 'red.7' : 'tide'}
      aria-label={t`Utilisation of ${limit.setting}`}
    />
  );
}

export function Limits() {
  const { t } = useLingui();
  const list = useWholeList<Limit>(limitsPath, { every: refreshMs });
  const columns: Column<Limit>[] = [
    {
      id: 'setting',
      header: t`Limit`,
      sort: (row) => row.setting,
      cell: (row) => (
        <Link href={`/settings?setting=${encodeURIComponent(row.setting)}`} className="link mono">
          {row.setting}
        </Link>
      ),
    },
    {
      id: 'utilisation',
      header: t`Utilisation`,
      width: 220,
      sort: (row) => row.utilisation,
      cell: (row) =>
        row.utilisation === null ? (
          '–'
        ) : (
          <span className="row">
            <span className="grow">
              <LimitBar limit={row} />
            </span>
            <span className="limit-share right">{formatNumber(row.utilisation * 100, 1)} %</span>
          </span>
        ),
    },
    {
      id: 'used',
      header: t`Used`,
      align: 'right',
      sort: (row) => row.used,
      cell: (row) => limitAmount(row, row.used),
    },
    {
      id: 'limit',
      header: t`Maximum`,
      align: 'right',
      sort: (row) => row.limit,
      cell: (row) => (row.limit === null ? <Trans>none</Trans> : limitAmount(row, row.limit)),
    },
    { id: 'help', header: t`Meaning`, cell: (row) => <Description text={row.help} /> },
  ];
  return (
    <DataTable
      name="limits"
      label={t`Limits`}
      columns={columns}
      rows={list.data}
      rowKey={(row) => row.setting}
      error={list.error}
      retry={() => void list.refetch()}
      initialOrder="-utilisation"
      toolbar={
        <div className="table-actions">
          <ShowCall method="GET" path={limitsPath} ctl="limits" />
        </div>
      }
      empty={<EmptyState title={<Trans>No limits</Trans>} />}
    />
  );
}
