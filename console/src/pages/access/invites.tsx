import { Alert, Button, Modal, NumberInput, Select, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconTicket } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { send, type ConfigurationObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { download } from '../../ui/download';
import { formatNumber } from '../../format';
import { CopyText } from '../../ui/copy';
import type { Column } from '../../ui/data-table';
import { Issued } from '../../ui/issued';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { ShowCall } from '../../ui/show-call';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { useNamespaceNames } from '../relay/endpoint-kind';
import { registerLink } from './registration';
import { RoleName, useRoleNames } from './grants';
import { ValidityBadge, ValidUntil } from './validity';

type Invite = Schemas['Invite'];

const path = '/api/v1/invites';
const maxBatch = 50;

/** Codes with which people create their own login. */
export function Invites() {
  const { t } = useLingui();
  const caller = useCaller();
  const roles = useRoleNames().namespace;
  const namespaces = useNamespaceNames();
  const [created, setCreated] = useState<ConfigurationObject>();
  const [isBatch, setBatch] = useState(false);
  const mayChange = mayInNamespace(caller, 'owner');
  const registration = useRead(
    ['settings', 'registration'],
    (signal) =>
      send<{ data: { value: unknown }[] }>('GET', '/api/v1/settings?key_contains=http.registration_enabled', {
        signal,
      }),
    { enabled: caller.role !== null },
  );
  const isOff = registration.data?.data[0]?.value === false;
  const kind: ObjectKind = {
    path,
    command: 'invites',
    idField: 'id',
    newSchema: 'InviteNew',
    inputSchema: 'InviteInput',
    newTitle: t`New invitation`,
    initial: { max_uses: 1 },
    deletion: (object) => (
      <Trans>
        This deletes the invitation {String(object.id)}: its code is no longer accepted. People who registered with it
        stay.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew
        ? [
            {
              name: 'namespace',
              label: t`Namespace`,
              help: t`What people join. None: everyone gets a namespace of their own.`,
              options: namespaces,
            },
          ]
        : []),
      { name: 'role', label: t`Role`, help: '', options: roles },
      { name: 'max_uses', label: t`Number of people`, help: '' },
      { name: 'expires_at_ms', label: t`Valid until`, help: t`Empty: for ever.`, control: 'time' },
      { name: 'description', label: t`Description`, help: '' },
      { name: 'enabled', label: t`Active`, help: '' },
    ],
  };
  const [state, setState] = useUrlState('state');
  const columns: Column<Invite>[] = [
    {
      id: 'namespace',
      header: t`Namespace`,
      sort: (row) => row.namespace,
      cell: (row) => row.namespace ?? <Trans>a new one for each person</Trans>,
    },
    { id: 'role', header: t`Role`, sort: (row) => row.role, cell: (row) => <RoleName role={row.role} /> },
    {
      id: 'used',
      header: t`Used`,
      align: 'right',
      sort: (row) => row.used_by.length,
      cell: (row) => `${formatNumber(row.used_by.length)} / ${formatNumber(row.max_uses)}`,
    },
    {
      id: 'state',
      header: t`State`,
      cell: (row) => <ValidityBadge of={row} usedUp={row.used_by.length >= row.max_uses && <Trans>used up</Trans>} />,
    },
    {
      id: 'until',
      header: t`Valid until`,
      sort: (row) => row.expires_at_ms,
      cell: (row) => <ValidUntil of={row} />,
    },
    { id: 'people', header: t`Registered`, cell: (row) => row.used_by.join(', ') || '–' },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
      isHidden: true,
    },
  ];
  return (
    <>
      {isOff && (
        <Alert color="yellow" variant="light" mb="sm">
          <Trans>Nobody can register now: the setting http.registration_enabled is false.</Trans>
        </Alert>
      )}
      <ObjectList<Invite>
        kind={kind}
        label={t`Invitations`}
        columns={columns}
        mayChange={mayChange}
        isNamespaced
        {...(state ? { isKept: (row: Invite) => stateOf(row) === state } : {})}
        filters={
          <Select
            aria-label={t`State`}
            placeholder={t`Any state`}
            clearable
            w={150}
            value={state || null}
            onChange={(next) => setState(next ?? '')}
            data={[
              { value: 'unused', label: t`unused` },
              { value: 'used', label: t`partly used` },
              { value: 'used_up', label: t`used up` },
              { value: 'expired', label: t`expired` },
              { value: 'disabled', label: t`not active` },
            ]}
          />
        }
        onCreated={setCreated}
        actions={
          mayChange && (
            <Button variant="default" leftSection={<IconTicket size={14} />} onClick={() => setBatch(true)}>
              <Trans>Create several</Trans>
            </Button>
          )
        }
        empty={{
          title: <Trans>No invitations yet</Trans>,
          text: <Trans>With the code of an invitation, people create their own login.</Trans>,
        }}
      />
      {created && (
        <Issued
          title={<Trans>The code of the invitation</Trans>}
          secret={String(created.code)}
          onClose={() => setCreated(undefined)}
        >
          <Text size="sm">
            <Trans>This link opens the page for registration with the code:</Trans>
          </Text>
          <CopyText text={registerLink(String(created.code))} />
        </Issued>
      )}
      {isBatch && <Batch onClose={() => setBatch(false)} />}
    </>
  );
}

/** What an invitation can still be used for. */
function stateOf({ enabled, used_by, max_uses, expires_at_ms }: Invite): string {
  if (enabled === false) return 'disabled';
  if (used_by.length >= max_uses) return 'used_up';
  if (expires_at_ms != null && expires_at_ms < Date.now()) return 'expired';
  return used_by.length > 0 ? 'used' : 'unused';
}

/** Codes with their links, for a spreadsheet. */
const codesCsv = (codes: string[]) => ['code,link', ...codes.map((code) => `${code},${registerLink(code)}`)].join('\n');

function Batch({ onClose }: { onClose: () => void }) {
  const { t } = useLingui();
  const caller = useCaller();
  const namespaces = useNamespaceNames();
  const [count, setCount] = useState(10);
  const [namespace, setNamespace] = useState<string | null>(caller.role === null ? (namespaces[0] ?? null) : null);
  const [description, setDescription] = useState('');
  const body = { count, namespace, description };
  const create = useChange(() => send<Schemas['InviteCodes']>('POST', '/api/v1/invite-batches', { body }), [[path]]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(undefined);
  };
  const codes = create.data?.data.map(({ code }) => code);
  return (
    <Modal
      opened
      onClose={onClose}
      closeOnClickOutside={!codes}
      title={codes ? <Trans>{formatNumber(codes.length)} codes</Trans> : <Trans>Create several invitations</Trans>}
    >
      {codes ? (
        <Stack gap="sm">
          <Alert color="yellow" variant="light">
            <Trans>Keep these links now: they are not shown again. People register with them.</Trans>
          </Alert>
          <CopyText text={codes.map((code) => registerLink(code)).join('\n')} />
          <div className="row" style={{ justifyContent: 'flex-end' }}>
            <Button
              variant="default"
              leftSection={<IconDownload size={14} />}
              onClick={() => download('invitations.csv', codesCsv(codes), 'text/csv')}
            >
              CSV
            </Button>
            <Button onClick={onClose}>
              <Trans>Done</Trans>
            </Button>
          </div>
        </Stack>
      ) : (
        <form onSubmit={submit}>
          <Stack gap="sm">
            <NumberInput
              label={t`Number of codes`}
              min={1}
              max={maxBatch}
              required
              data-autofocus
              value={count}
              error={count < 1 || count > maxBatch ? t`From 1 to ${maxBatch}` : undefined}
              onChange={(next) => setCount(Number(next))}
            />
            <Select
              label={t`Namespace`}
              description={t`What people join. None: everyone gets a namespace of their own.`}
              clearable={caller.role !== null}
              data={namespaces}
              value={namespace}
              onChange={setNamespace}
            />
            <TextInput
              label={t`Description`}
              value={description}
              onChange={(event) => setDescription(event.currentTarget.value)}
            />
            {create.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {create.error.message}
              </Text>
            )}
            <div className="row wrap" style={{ justifyContent: 'space-between' }}>
              <ShowCall method="POST" path="/api/v1/invite-batches" body={body} ctl={`invites batch ${count}`} />
              <Button type="submit" loading={create.isPending} disabled={count < 1 || count > maxBatch}>
                <Trans>Create</Trans>
              </Button>
            </div>
          </Stack>
        </form>
      )}
    </Modal>
  );
}
