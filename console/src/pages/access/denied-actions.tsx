import { Alert, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { Link } from 'wouter';
import { useRead, type Schemas } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { DataTable, type Column } from '../../ui/data-table';
import { useRepetitionColumns } from '../../ui/repetition-columns';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { Decision } from './access-check';

type Denied = Schemas['DeniedActionView'];

const path = '/api/v1/denied-actions';
const refreshMs = 3_000;
const maxRows = 1_000;

/** What clients wanted to do and were denied, or would have been. */
export function DeniedActions() {
  const { t } = useLingui();
  const [client, setClient] = useUrlState('client');
  const [topic, setTopic] = useUrlState('topic');
  const [filters] = useDebouncedValue({ client_id: client.trim(), topic_contains: topic.trim() }, 300);
  const list = useRead(
    [path, filters],
    (signal) => send<{ data: Denied[] }>('GET', withQuery(path, { ...filters, limit: maxRows }), { signal }),
    { every: refreshMs, keep: true },
  );
  const setting = useRead(['settings', 'deny_action'], (signal) =>
    send<Schemas['SettingInfo']>('GET', '/api/v1/settings/auth.deny_action', { signal }),
  );
  const columns: Column<Denied>[] = [
    {
      id: 'client',
      header: t`Client`,
      sort: (row) => row.client_id,
      cell: (row) => (
        <Link href={`/clients/${encodeURIComponent(row.client_id)}`} className="link">
          {row.client_id}
        </Link>
      ),
    },
    { id: 'user', header: t`User`, sort: (row) => row.username, cell: (row) => row.username ?? '–' },
    {
      id: 'action',
      header: t`Action`,
      sort: (row) => row.action,
      cell: (row) => (row.action === 'publish' ? <Trans>publish</Trans> : <Trans>subscribe</Trans>),
    },
    {
      id: 'topic',
      header: t`Topic`,
      sort: (row) => row.topic,
      cell: (row) => <span className="mono">{row.topic}</span>,
    },
    {
      id: 'result',
      header: t`Result`,
      sort: (row) => (row.enforced ? 0 : 1),
      cell: (row) =>
        row.enforced ? (
          <StateBadge health="critical">
            <Trans>denied</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="warning">
            <Trans>would be denied</Trans>
          </StateBadge>
        ),
    },
    { id: 'rule', header: t`Why`, cell: (row) => <Decision source={row.source} rule={row.rule} /> },
    ...useRepetitionColumns<Denied>(),
    {
      id: 'check',
      header: t`Check`,
      cell: (row) => (
        <Link
          href={withQuery('/access/mqtt', {
            tab: 'check',
            client: row.client_id,
            user: row.username,
            action: row.action,
            topic: row.topic,
          })}
          className="link"
        >
          <Trans>Check</Trans>
        </Link>
      ),
    },
  ];
  return (
    <>
      {setting.data?.value === 'observe' && (
        <Alert color="yellow" variant="light" mb="sm">
          <Trans>
            Permissions are only observed: what they deny is allowed, and listed here (auth.deny_action = observe).
          </Trans>
        </Alert>
      )}
      <DataTable
        name="denied-actions"
        label={t`Denied actions`}
        columns={columns}
        rows={list.data?.data}
        rowKey={(row) => `${row.client_id} ${row.username ?? ''} ${row.action} ${row.topic} ${row.enforced}`}
        error={list.error}
        retry={() => void list.refetch()}
        toolbar={
          <>
            <TextInput
              aria-label={t`Client id`}
              placeholder={t`Client id`}
              leftSection={<IconSearch size={14} />}
              w={200}
              value={client}
              onChange={(event) => setClient(event.currentTarget.value)}
            />
            <TextInput
              aria-label={t`Part of the topic`}
              placeholder={t`Part of the topic`}
              w={200}
              value={topic}
              onChange={(event) => setTopic(event.currentTarget.value)}
            />
            <div className="table-actions">
              <ShowCall method="GET" path={path} ctl="acl denied" />
            </div>
          </>
        }
        empty={
          client || topic ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>Nothing was denied</Trans>}>
              <Trans>Publications and subscriptions that were denied since the node started appear here.</Trans>
            </EmptyState>
          )
        }
      />
    </>
  );
}
