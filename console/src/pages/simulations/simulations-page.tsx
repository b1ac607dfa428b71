import { Trans, useLingui } from '@lingui/react/macro';
import { Text } from '@mantine/core';
import { Link } from 'wouter';
import { useWholeList } from '../../api/objects';
import { formatNumber } from '../../format';
import { DataTable, type Column } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { describe } from './descriptions';
import { RunButton, SimulationStateBadge, simulationsPath, type Simulation } from './simulation';

const refreshMs = 2_000;

/** Fleets of simulated devices that the node starts and that connect to its own listeners. */
export default function SimulationsPage() {
  const { t, i18n } = useLingui();
  const list = useWholeList<Simulation>(simulationsPath, { every: refreshMs });
  const href = ({ name }: Simulation) => `/simulations/${encodeURIComponent(name)}`;
  const columns: Column<Simulation>[] = [
    {
      id: 'name',
      header: t`Simulation`,
      width: 160,
      sort: ({ name }) => name,
      cell: (simulation) => (
        <Link href={href(simulation)} className="link">
          {simulation.name}
        </Link>
      ),
    },
    {
      id: 'action',
      header: t`Action`,
      width: 100,
      cell: (simulation) => <RunButton simulation={simulation} size="compact-xs" />,
    },
    {
      id: 'state',
      header: t`State`,
      width: 170,
      sort: ({ run }) => run?.state ?? '',
      cell: (simulation) => <SimulationStateBadge simulation={simulation} />,
    },
    {
      id: 'devices',
      header: t`Devices`,
      align: 'right',
      width: 90,
      sort: ({ devices }) => devices,
      cell: ({ devices }) => formatNumber(devices),
    },
    {
      id: 'rate',
      header: t`Messages/s`,
      align: 'right',
      width: 110,
      sort: ({ messages_per_s }) => messages_per_s,
      cell: ({ messages_per_s }) => formatNumber(messages_per_s),
    },
    {
      id: 'description',
      header: t`Description`,
      cell: (simulation) => {
        const description = describe(i18n, simulation);
        return (
          <Text size="sm" truncate title={description}>
            {description}
          </Text>
        );
      },
    },
  ];
  return (
    <Page
      title={t`Simulations`}
      description={
        <Trans>
          Fleets of simulated devices that connect to this node, to try its pages, rules and dashboards. Everything that
          a simulation creates is removed when it ends.
        </Trans>
      }
      actions={<ShowCall method="GET" path={simulationsPath} ctl="simulations list" />}
    >
      <DataTable
        name="simulations"
        label={t`Simulations`}
        columns={columns}
        rows={list.data}
        rowKey={({ name }) => name}
        rowHref={href}
        error={list.error}
        retry={() => void list.refetch()}
        empty={<EmptyState title={<Trans>This node has no simulations</Trans>} />}
      />
    </Page>
  );
}
