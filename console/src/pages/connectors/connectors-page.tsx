import { Button, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconSearch } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import { choiceName } from '../../api/choice-names';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { DefinitionDrawer, type Definition } from './definition-drawer';
import {
  useChannelDefinition,
  useConnectorDefinition,
  useConnectorTypes,
  usePullSourceDefinition,
} from './definitions';
import './connectors.css';
import { PullStateBadge, SinkStateBadge, SourceStateBadge } from './sink-state';

const refreshMs = 3_000;

export const sinkHref = (name: string) => `/connectors/sinks/${encodeURIComponent(name)}`;

export default function ConnectorsPage() {
  const { t } = useLingui();
  return (
    <Page
      title={t`Connectors`}
      description={t`Connectors hold addresses and credentials of other systems. Sinks write rows to them, sources receive from them.`}
    >
      <PageTabs
        tabs={[
          { id: 'sinks', label: <Trans>Sinks</Trans>, content: <Sinks /> },
          { id: 'connectors', label: <Trans>Connectors</Trans>, content: <Connectors /> },
          { id: 'sources', label: <Trans>Sources</Trans>, content: <Sources /> },
          { id: 'pull', label: <Trans>Pull sources</Trans>, content: <PullSources /> },
        ]}
      />
    </Page>
  );
}

interface StatusListProps<T> {
  definition: Definition;
  /** Where the states are read, sorted by name. */
  statusPath: string;
  label: string;
  columns: Column<T>[];
  /** Default: a row opens the editor. */
  rowHref?: (row: T) => string;
  empty: { title: ReactNode; text: ReactNode };
}

/** The states of objects of a kind, with the editor of their definitions. */
function StatusList<T extends { name: string }>({
  definition,
  statusPath,
  label,
  columns,
  rowHref,
  empty,
}: StatusListProps<T>) {
  const { t } = useLingui();
  const caller = useCaller();
  const [location, navigate] = useLocation();
  const [tab] = useUrlState('tab', 'sinks');
  const [edited, setEdited] = useUrlState('edit');
  const [isNew, setNew] = useUrlState('new');
  const [search, setSearch] = useUrlState('search');
  const list = useList<T>(statusPath, {}, { every: refreshMs });
  const wanted = search.trim().toLowerCase();
  const rows = wanted ? list.rows?.filter(({ name }) => name.toLowerCase().includes(wanted)) : list.rows;
  const mayChange = mayOnNode(caller, 'operator');
  const href =
    rowHref ??
    ((row: T) => `${location}?${new URLSearchParams({ ...(tab === 'sinks' ? {} : { tab }), edit: row.name })}`);
  const add = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setNew('1')}>
      {definition.newTitle}
    </Button>
  );
  return (
    <>
      <DataTable
        name={definition.command}
        label={label}
        columns={[
          {
            id: 'name',
            header: t`Name`,
            sort: (row) => row.name,
            cell: (row) => (
              <Link href={href(row)} className="link">
                {row.name}
              </Link>
            ),
          },
          ...columns,
        ]}
        rowKey={(row) => row.name}
        rowHref={href}
        {...pagesOf(list)}
        rows={rows}
        height="calc(100dvh - 300px)"
        toolbar={
          <>
            <TextInput
              aria-label={t`Part of a name`}
              placeholder={t`Part of a name`}
              leftSection={<IconSearch size={14} />}
              value={search}
              onChange={(event) => setSearch(event.currentTarget.value)}
              w={220}
            />
            <div className="row wrap table-actions">{add}</div>
          </>
        }
        empty={
          wanted ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={empty.title} actions={add}>
              {empty.text}
            </EmptyState>
          )
        }
      />
      {(edited || isNew) && (
        <DefinitionDrawer
          key={edited || 'new'}
          definition={definition}
          name={edited || null}
          mayChange={mayChange}
          onClose={() => (edited ? setEdited('') : setNew(''))}
          onSaved={(name) => {
            if (rowHref) navigate(rowHref({ name } as T));
            void list.refetch();
          }}
        />
      )}
    </>
  );
}

const dash = <span className="dimmed">–</span>;

function LastError({ text, atMs }: { text: string | null | undefined; atMs: number | null | undefined }) {
  if (!text) return dash;
  return (
    <span className="row">
      <Ago ms={atMs} />
      <span className="ellipsis last-error" title={text}>
        {text}
      </span>
    </span>
  );
}

const typeName = (type: string | null | undefined) => (type ? choiceName('type', type) : dash);

function Sinks() {
  const { t } = useLingui();
  const definition = useChannelDefinition('sinks');
  const columns: Column<Schemas['SinkStatus']>[] = [
    { id: 'state', header: t`State`, sort: (row) => row.state, cell: (row) => <SinkStateBadge status={row} /> },
    { id: 'connector', header: t`Connector`, sort: (row) => row.connector, cell: (row) => row.connector },
    { id: 'type', header: t`Type`, sort: (row) => row.type, cell: (row) => typeName(row.type) },
    {
      id: 'queued',
      header: t`Queued`,
      align: 'right',
      sort: (row) => row.metrics.queued,
      cell: (row) => formatNumber(row.metrics.queued),
    },
    {
      id: 'queued-bytes',
      header: t`Queued bytes`,
      align: 'right',
      isHidden: true,
      sort: (row) => row.metrics.queued_bytes,
      cell: (row) => formatBytes(row.metrics.queued_bytes),
    },
    {
      id: 'sent',
      header: t`Written`,
      align: 'right',
      sort: (row) => row.metrics.sent,
      cell: (row) => formatNumber(row.metrics.sent),
    },
    {
      id: 'retried',
      header: t`Retried`,
      align: 'right',
      sort: (row) => row.metrics.retried,
      cell: (row) => formatNumber(row.metrics.retried),
    },
    {
      id: 'dead-letters',
      header: t`Dead letters`,
      align: 'right',
      sort: (row) => row.metrics.dead_letters,
      cell: (row) =>
        row.metrics.dead_letters > 0 ? (
          <Link href={`${sinkHref(row.name)}?tab=dead-letters`} className="link state-critical">
            {formatNumber(row.metrics.dead_letters)}
          </Link>
        ) : (
          '0'
        ),
    },
    {
      id: 'error',
      header: t`Last error`,
      cell: (row) => <LastError text={row.problem ?? row.last_error} atMs={row.last_error_at_ms} />,
    },
  ];
  return (
    <StatusList
      definition={definition}
      statusPath="/api/v1/sink-status"
      label={t`Sinks`}
      columns={columns}
      rowHref={(row) => sinkHref(row.name)}
      empty={{
        title: <Trans>No sinks yet</Trans>,
        text: (
          <Trans>
            A sink writes the outputs of rules through a connector: to a database, a queue, a web server or files.
            Create the connector first.
          </Trans>
        ),
      }}
    />
  );
}

function Connectors() {
  const { t } = useLingui();
  const definition = useConnectorDefinition();
  const types = useConnectorTypes();
  const columns: Column<Schemas['ConnectorStatus']>[] = [
    {
      id: 'state',
      header: t`State`,
      sort: (row) => Number(row.is_failing),
      cell: (row) =>
        row.is_failing ? (
          <StateBadge health="critical">
            <Trans>failing</Trans>
          </StateBadge>
        ) : row.sinks.length > 0 ? (
          <StateBadge health="good">
            <Trans>in use</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="unknown">
            <Trans>not used</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'type',
      header: t`Type`,
      sort: (row) => row.type,
      cell: (row) => types.data?.find(({ type }) => type === row.type)?.title ?? row.type,
    },
    {
      id: 'sinks',
      header: t`Sinks`,
      cell: (row) =>
        row.sinks.length === 0
          ? dash
          : row.sinks.slice(0, 5).map((name) => (
              <Link key={name} href={sinkHref(name)} className="link separated">
                {name}
              </Link>
            )),
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || dash },
  ];
  return (
    <StatusList
      definition={definition}
      statusPath="/api/v1/connector-status"
      label={t`Connectors`}
      columns={columns}
      empty={{
        title: <Trans>No connectors yet</Trans>,
        text: (
          <Trans>
            A connector has the address and the credentials of another system. It can be tested before it is saved.
          </Trans>
        ),
      }}
    />
  );
}

function Sources() {
  const { t } = useLingui();
  const definition = useChannelDefinition('sources');
  const columns: Column<Schemas['SourceStatus']>[] = [
    { id: 'state', header: t`State`, sort: (row) => row.state, cell: (row) => <SourceStateBadge status={row} /> },
    { id: 'connector', header: t`Connector`, sort: (row) => row.connector, cell: (row) => row.connector },
    { id: 'type', header: t`Type`, sort: (row) => row.type, cell: (row) => typeName(row.type) },
    {
      id: 'received',
      header: t`Received`,
      align: 'right',
      sort: (row) => row.received,
      cell: (row) => formatNumber(row.received),
    },
    {
      id: 'rule',
      header: t`In rules`,
      cell: (row) => <span className="mono">{row.type ? `"$bridges/${row.type}:${row.name}"` : '–'}</span>,
    },
    {
      id: 'error',
      header: t`Last error`,
      cell: (row) => <LastError text={row.last_error} atMs={row.last_error_at_ms} />,
    },
  ];
  return (
    <StatusList
      definition={definition}
      statusPath="/api/v1/source-status"
      label={t`Sources`}
      columns={columns}
      empty={{
        title: <Trans>No sources yet</Trans>,
        text: <Trans>A source receives messages from another system through a connector; rules read them.</Trans>,
      }}
    />
  );
}

function PullSources() {
  const { t } = useLingui();
  const definition = usePullSourceDefinition();
  const columns: Column<Schemas['PullSourceStatus']>[] = [
    { id: 'state', header: t`State`, cell: (row) => <PullStateBadge status={row} /> },
    { id: 'type', header: t`Type`, sort: (row) => row.type, cell: (row) => typeName(row.type) },
    {
      id: 'last',
      header: t`Last poll`,
      sort: (row) => row.last_run_at_ms,
      cell: (row) => <Ago ms={row.last_run_at_ms} />,
    },
    {
      id: 'duration',
      header: t`Duration`,
      align: 'right',
      cell: (row) => (row.last_duration_ms == null ? dash : `${formatNumber(row.last_duration_ms)} ms`),
    },
    {
      id: 'next',
      header: t`Next poll`,
      align: 'right',
      cell: (row) =>
        row.next_run_at_ms == null
          ? dash
          : t`in ${formatDuration(Math.max(0, row.next_run_at_ms - Date.now()) / 1000)}`,
    },
    {
      id: 'values',
      header: t`Values`,
      align: 'right',
      sort: (row) => row.values,
      cell: (row) => formatNumber(row.values),
    },
    {
      id: 'unknown',
      header: t`Unknown devices`,
      align: 'right',
      sort: (row) => row.unknown_rows,
      cell: (row) =>
        row.unknown_rows > 0 ? <span className="state-warning">{formatNumber(row.unknown_rows)}</span> : '0',
    },
    {
      id: 'error',
      header: t`Last error`,
      cell: (row) => <LastError text={row.last_error} atMs={row.last_error_at_ms} />,
    },
  ];
  return (
    <StatusList
      definition={definition}
      statusPath="/api/v1/pull-source-status"
      label={t`Pull sources`}
      columns={columns}
      empty={{
        title: <Trans>No pull sources yet</Trans>,
        text: (
          <Trans>
            A pull source polls Prometheus, an HTTP server or IPMI sensors and stores the values for devices.
          </Trans>
        ),
      }}
    />
  );
}
