import { TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { Link } from 'wouter';
import { useRead, type Schemas } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { DataTable, type Column } from '../../ui/data-table';
import { useRepetitionColumns } from '../../ui/repetition-columns';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';

type Rejected = Schemas['RejectedConnection'];

const path = '/api/v1/rejected-connections';
const refreshMs = 3_000;
const maxRows = 1_000;

/** Attempts to connect that the node has rejected, with the reason. */
export function RejectedConnections() {
  const { t } = useLingui();
  const [client, setClient] = useUrlState('client');
  const [text] = useDebouncedValue(client.trim(), 300);
  const list = useRead(
    [path, text],
    (signal) =>
      send<{ data: Rejected[] }>('GET', withQuery(path, { client_id_contains: text, limit: maxRows }), { signal }),
    { every: refreshMs, keep: true },
  );
  const columns: Column<Rejected>[] = [
    {
      id: 'client',
      header: t`Client`,
      sort: (row) => row.client_id,
      cell: (row) => <span className="mono">{row.client_id ?? '–'}</span>,
    },
    { id: 'reason', header: t`Reason`, sort: (row) => row.reason, cell: (row) => <Reason row={row} /> },
    { id: 'step', header: t`Step`, sort: (row) => row.step, cell: (row) => <StepName step={row.step} /> },
    { id: 'user', header: t`User`, sort: (row) => row.username, cell: (row) => row.username ?? '–' },
    {
      id: 'address',
      header: t`Address`,
      sort: (row) => row.address,
      cell: (row) => <span className="mono">{row.address ?? '–'}</span>,
    },
    { id: 'listener', header: t`Listener`, sort: (row) => row.listener, cell: (row) => row.listener, isHidden: true },
    {
      id: 'code',
      header: t`Reason code`,
      sort: (row) => row.reason_code,
      cell: (row) => <span className="mono">0x{row.reason_code.toString(16).toUpperCase().padStart(2, '0')}</span>,
      isHidden: true,
    },
    ...useRepetitionColumns<Rejected>(),
    {
      id: 'check',
      header: t`Check`,
      cell: (row) => (
        <Link
          href={withQuery('/access/mqtt', { tab: 'check', client: row.client_id, user: row.username })}
          className="link"
        >
          <Trans>Try a login</Trans>
        </Link>
      ),
    },
  ];
  return (
    <DataTable
      name="rejected-connections"
      label={t`Rejected connections`}
      columns={columns}
      rows={list.data?.data}
      rowKey={(row) =>
        [row.client_id, row.username, row.address, row.listener, row.step, row.reason_code, row.reason].join(' ')
      }
      error={list.error}
      retry={() => void list.refetch()}
      toolbar={
        <>
          <TextInput
            aria-label={t`Part of a client id`}
            placeholder={t`Part of a client id`}
            leftSection={<IconSearch size={14} />}
            w={240}
            value={client}
            onChange={(event) => setClient(event.currentTarget.value)}
          />
          <div className="table-actions">
            <ShowCall
              method="GET"
              path={withQuery(path, { client_id_contains: text })}
              ctl={text === '' ? 'rejected-connections' : `rejected-connections --client-id ${quoted(text)}`}
            />
          </div>
        </>
      }
      empty={
        client ? (
          <EmptyState title={<Trans>Nothing matches</Trans>}>
            <Trans>No client with this in its id was rejected since the node started.</Trans>
          </EmptyState>
        ) : (
          <EmptyState title={<Trans>No connection was rejected</Trans>}>
            <Trans>Clients that cannot connect appear here with the reason, since the node started.</Trans>
          </EmptyState>
        )
      }
    />
  );
}

function Reason({ row }: { row: Rejected }) {
  return (
    <span className="state-critical" title={row.reason}>
      {row.reason}
    </span>
  );
}

function StepName({ step }: { step: string }) {
  switch (step) {
    case 'protocol':
      return <Trans>protocol</Trans>;
    case 'ban':
      return <Trans>ban</Trans>;
    case 'limit':
      return <Trans>limit</Trans>;
    case 'authentication':
      return <Trans>authentication</Trans>;
    case 'availability':
      return <Trans>availability</Trans>;
    default:
      return <>{step}</>;
  }
}
