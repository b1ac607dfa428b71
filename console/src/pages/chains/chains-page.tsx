import { Button } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus } from '@tabler/icons-react';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { newChainPath } from '../../new-paths';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { SearchField, useSearch } from '../../ui/search-toolbar';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';

type Chain = Schemas['RuleChain'];

const chainHref = (id: string) => `/chains/${encodeURIComponent(id)}`;

export default function ChainsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const search = useSearch();
  const list = useList<Chain>('/api/v1/rule-chains', { id_contains: search.wanted });
  const columns: Column<Chain>[] = [
    {
      id: 'id',
      header: t`Id`,
      sort: (row) => row.id,
      cell: (row) => (
        <Link href={chainHref(row.id)} className="link">
          {row.id}
        </Link>
      ),
    },
    {
      id: 'nodes',
      header: t`Nodes`,
      align: 'right',
      sort: (row) => row.nodes.length,
      cell: (row) => formatNumber(row.nodes.length),
    },
    {
      id: 'steps',
      header: t`Steps`,
      cell: (row) => row.nodes.map((node) => String((node as { type?: string }).type)).join(' → '),
    },
    {
      id: 'changed',
      header: t`Changed`,
      sort: (row) => row.updated_at_ms,
      cell: (row) => <Ago ms={row.updated_at_ms} />,
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
  ];
  const add = mayOnNode(caller, 'operator') && (
    <Button component={Link} href={newChainPath} leftSection={<IconPlus size={14} />}>
      <Trans>New chain</Trans>
    </Button>
  );
  return (
    <Page
      title={t`Rule chains`}
      description={t`How the telemetry of a product is processed: filtered, transformed, stored, published. A product names its chain.`}
      actions={add}
    >
      <DataTable
        name="chains"
        label={t`Rule chains`}
        columns={columns}
        rowKey={(row) => row.id}
        rowHref={(row) => chainHref(row.id)}
        {...pagesOf(list)}
        toolbar={<SearchField label={t`Part of an id`} search={search} />}
        empty={
          search.wanted ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No chains yet</Trans>} actions={add}>
              <Trans>
                Without a chain, values are validated, stored, and evaluated for alarms. A chain adds filters,
                calculations and messages.
              </Trans>
            </EmptyState>
          )
        }
      />
    </Page>
  );
}
