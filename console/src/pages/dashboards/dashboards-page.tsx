import { Button, FileButton, Group, Modal, Select, Stack, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconSearch, IconUpload } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { Link, useLocation } from 'wouter';
import { useChange } from '../../api/client';
import { send, useList, type Fields } from '../../api/objects';
import { mayInNamespace, mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { NamespaceSelect } from '../../ui/object-list';
import { Page } from '../../ui/page';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { imported, path, type StoredDashboard } from './dashboard';

export const dashboardHref = (id: string) => `/dashboards/${encodeURIComponent(id)}`;

export default function DashboardsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const [search, setSearch] = useUrlState('search');
  const [wanted] = useDebouncedValue(search.trim(), 200);
  const text = wanted.toLowerCase();
  const create = useChange((body: Fields) => send<StoredDashboard>('POST', path, { body }), [[path]]);
  // A new dashboard that waits for the choice of its namespace.
  const [pending, setPending] = useState<Fields | null>(null);
  const [namespace, setNamespace] = useUrlState('namespace');
  const list = useList<StoredDashboard>(path, { namespace });
  const rows = text
    ? list.rows?.filter(({ id, name }) => id.toLowerCase().includes(text) || name.toLowerCase().includes(text))
    : list.rows;
  const choices = useNamespaceChoices();
  const createIn = (body: Fields, owner: string | null) =>
    create.mutate(
      { ...body, ...(owner === null ? {} : { namespace: owner }) },
      {
        onSuccess: ({ id }) => navigate(`${dashboardHref(id)}?edit=1`),
        onError: (error) => notifications.show({ color: 'red', message: error.message }),
      },
    );
  const add = (body: Fields) => {
    if (choices.isQuestion) setPending(body);
    else createIn(body, choices.initial);
  };
  const load = (file: File | null) => {
    void file
      ?.text()
      .then((content) => add(imported(content)))
      .catch((error: Error) =>
        notifications.show({ color: 'red', message: t`This file cannot be used: ${error.message}` }),
      );
  };
  const columns: Column<StoredDashboard>[] = [
    {
      id: 'name',
      header: t`Name`,
      sort: (row) => row.name || row.id,
      cell: (row) => (
        <Link href={dashboardHref(row.id)} className="link">
          {row.name || row.id}
        </Link>
      ),
    },
    {
      id: 'cards',
      header: t`Cards`,
      align: 'right',
      sort: (row) => row.cards.length,
      cell: (row) => formatNumber(row.cards.length),
    },
    {
      id: 'shares',
      header: t`Share links`,
      align: 'right',
      sort: (row) => row.shares.length,
      cell: (row) => formatNumber(row.shares.length),
    },
    { id: 'namespace', header: t`Namespace`, sort: (row) => row.namespace, cell: (row) => row.namespace ?? '–' },
    {
      id: 'changed',
      header: t`Changed`,
      sort: (row) => row.updated_at_ms,
      cell: (row) => <Ago ms={row.updated_at_ms} />,
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
  ];
  const actions = mayInNamespace(caller, 'operator') && (
    <>
      <FileButton accept="application/json,.json" onChange={load}>
        {(props) => (
          <Button variant="default" leftSection={<IconUpload size={14} />} {...props}>
            <Trans>Import</Trans>
          </Button>
        )}
      </FileButton>
      <Button
        leftSection={<IconPlus size={14} />}
        loading={create.isPending}
        onClick={() => add({ name: t`New dashboard` })}
      >
        <Trans>New dashboard</Trans>
      </Button>
    </>
  );
  return (
    <Page
      title={t`Dashboards`}
      description={t`Values, charts and controls on one page, live, for you or behind a link.`}
      actions={actions}
    >
      <DataTable
        name="dashboards"
        label={t`Dashboards`}
        columns={columns}
        rowKey={(row) => row.id}
        rowHref={(row) => dashboardHref(row.id)}
        {...pagesOf(list)}
        rows={rows}
        toolbar={
          <>
            <TextInput
              aria-label={t`Part of a name`}
              placeholder={t`Part of a name`}
              leftSection={<IconSearch size={14} />}
              value={search}
              onChange={(event) => setSearch(event.currentTarget.value)}
              w={240}
            />
            <NamespaceSelect value={namespace} onChange={setNamespace} />
          </>
        }
        empty={
          text || namespace ? (
            <EmptyState title={<Trans>No dashboard matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No dashboards yet</Trans>} actions={actions}>
              <Trans>
                A dashboard shows values and charts of devices. It can be shared through a link that can be revoked.
              </Trans>
            </EmptyState>
          )
        }
      />
      {pending && (
        <ChooseNamespace
          names={choices.names}
          mayBeOfNode={choices.mayBeOfNode}
          isPending={create.isPending}
          onClose={() => setPending(null)}
          onChoose={(owner) => createIn(pending, owner)}
        />
      )}
    </Page>
  );
}

/** Where the caller may create dashboards: in namespaces, and as an operator of the whole node without one. */
function useNamespaceChoices() {
  const caller = useCaller();
  const mayBeOfNode = mayOnNode(caller, 'operator');
  const all = useList<{ id: string }>('/api/v1/namespaces', {}, { enabled: mayBeOfNode });
  const own = caller.namespaces.filter(({ role }) => role !== 'viewer').map((grant) => grant.namespace);
  const names = mayBeOfNode ? (all.rows ?? []).map(({ id }) => id) : own;
  return { mayBeOfNode, names, isQuestion: names.length > 1, initial: mayBeOfNode ? null : (own[0] ?? null) };
}

function ChooseNamespace({
  names,
  mayBeOfNode,
  isPending,
  onClose,
  onChoose,
}: {
  names: string[];
  mayBeOfNode: boolean;
  isPending: boolean;
  onClose: () => void;
  onChoose: (namespace: string | null) => void;
}) {
  const { t } = useLingui();
  const [chosen, setChosen] = useState<string | null>(mayBeOfNode ? null : (names[0] ?? null));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onChoose(chosen);
  };
  return (
    <Modal opened onClose={onClose} title={<Trans>New dashboard</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <Select
            label={t`Namespace`}
            description={t`A dashboard shows only what belongs to its namespace. This cannot be changed later.`}
            placeholder={mayBeOfNode ? t`none: the node with all devices` : undefined}
            searchable
            clearable={mayBeOfNode}
            allowDeselect={mayBeOfNode}
            data-autofocus
            data={names}
            value={chosen}
            onChange={setChosen}
          />
          <Group justify="flex-end">
            <Button type="submit" loading={isPending}>
              <Trans>Create</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
