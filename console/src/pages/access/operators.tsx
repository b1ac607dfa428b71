import { Alert, Badge, Button, Modal, NumberInput, Select, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconBan } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useList, type ConfigurationObject } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber, formatTime } from '../../format';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { quoted, ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { GrantsInput, RoleName, useRoleNames } from './grants';

type Operator = Schemas['Operator'];

const path = '/api/v1/operators';

/** People who log in to the console and the API. */
export function Operators() {
  const { t } = useLingui();
  const caller = useCaller();
  const roles = useRoleNames().node;
  const names = { viewer: t`viewer`, operator: t`operator`, owner: t`owner`, admin: t`admin` };
  const kind: ObjectKind = {
    path,
    command: 'operators',
    idField: 'username',
    newSchema: 'OperatorNew',
    inputSchema: 'OperatorInput',
    newTitle: t`New person`,
    initial: { username: '', password: '', role: 'viewer' },
    deletion: (object) => (
      <Trans>This deletes {String(object.username)} and ends all their sessions. What they created stays.</Trans>
    ),
    fields: (isNew) => [
      ...(isNew ? [{ name: 'username', label: t`Name` }] : []),
      {
        name: 'password',
        label: t`Password`,
        help: isNew ? t`At least 8 characters.` : t`Empty: unchanged. A new one ends all sessions.`,
        control: 'secret',
      },
      {
        name: 'role',
        label: t`Role on the whole node`,
        help: t`None: only the roles in namespaces.`,
        options: roles,
      },
      { name: 'namespaces', label: t`Roles in namespaces`, render: (input) => <GrantsInput {...input} /> },
      { name: 'email', label: t`E-mail`, help: '' },
      { name: 'description', label: t`Description`, help: '' },
      { name: 'enabled', label: t`May log in`, help: t`Disabling ends all sessions.` },
    ],
  };
  const [role, setRole] = useUrlState('role');
  const [least, setLeast] = useUrlState('endpoints');
  const endpoints = useEndpointCounts();
  const isKept = (row: Operator) => hasRole(row, role) && endpoints.countOf(row) >= Number(least || 0);
  const columns: Column<Operator>[] = [
    {
      id: 'role',
      header: t`Roles`,
      sort: (row) => row.role ?? '',
      cell: (row) => (
        <span className="row">
          {row.role && (
            <Badge variant="light" tt="none">
              <RoleName role={row.role} />
            </Badge>
          )}
          {row.namespaces.map((grant) => (
            <Badge key={grant.namespace} variant="default" tt="none">
              {grant.namespace}: <RoleName role={grant.role} />
            </Badge>
          ))}
        </span>
      ),
    },
    {
      id: 'state',
      header: t`State`,
      sort: (row) => (row.ban ? 2 : row.enabled ? 0 : 1),
      cell: (row) =>
        row.ban ? (
          <StateBadge health="critical">
            <Trans>banned</Trans>
          </StateBadge>
        ) : row.enabled ? (
          <StateBadge health="good">
            <Trans>active</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="unknown">
            <Trans>disabled</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'endpoints',
      header: t`Endpoints`,
      align: 'right',
      sort: (row) => endpoints.countOf(row),
      cell: (row) => formatNumber(endpoints.countOf(row)),
    },
    { id: 'email', header: t`E-mail`, sort: (row) => row.email, cell: (row) => row.email ?? '–' },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <ObjectList<Operator>
      kind={kind}
      label={t`People`}
      columns={columns}
      mayChange={mayOnNode(caller, 'admin')}
      {...(role || least ? { isKept } : {})}
      filters={
        <>
          <Select
            aria-label={t`Role`}
            placeholder={t`Any role`}
            clearable
            w={190}
            value={role || null}
            onChange={(next) => setRole(next ?? '')}
            data={[
              { group: t`On the whole node`, items: nodeRoles.map((each) => ({ value: each, label: names[each] })) },
              {
                group: t`In a namespace`,
                items: namespaceRoles.map((each) => ({ value: `namespace.${each}`, label: names[each] })),
              },
            ]}
          />
          <NumberInput
            aria-label={t`Endpoints at least`}
            placeholder={t`Endpoints at least`}
            min={0}
            allowDecimal={false}
            hideControls
            w={150}
            value={least === '' ? '' : Number(least)}
            onChange={(next) => setLeast(next === '' || Number(next) <= 0 ? '' : String(next))}
          />
        </>
      }
      details={(object) => <BanInfo operator={object as unknown as Operator} />}
      editorActions={(object) => <BanButton operator={object as unknown as Operator & ConfigurationObject} />}
      empty={{ title: <Trans>No people yet</Trans>, text: <Trans>People log in with a name and a password.</Trans> }}
    />
  );
}

const nodeRoles = ['viewer', 'operator', 'admin'] as const;
const namespaceRoles = ['viewer', 'operator', 'owner'] as const;

/** Whether a person has a role on the node, or with `namespace.` before it in a namespace; an empty text is any. */
function hasRole({ role, namespaces }: Operator, wanted: string): boolean {
  if (wanted === '') return true;
  const [, inNamespace] = wanted.split('.');
  return inNamespace === undefined ? role === wanted : namespaces.some((grant) => grant.role === inNamespace);
}

/** The relay endpoints of the namespaces that people own. */
function useEndpointCounts() {
  const endpoints = useList<Schemas['RelayEndpoint']>('/api/v1/endpoints', {}, { pageSize: 1_000 });
  const counts = new Map<string, number>();
  for (const { namespace = 'default' } of endpoints.rows ?? []) counts.set(namespace, (counts.get(namespace) ?? 0) + 1);
  const countOf = ({ namespaces }: Operator) =>
    namespaces
      .filter(({ role }) => role === 'owner')
      .reduce((sum, { namespace }) => sum + (counts.get(namespace) ?? 0), 0);
  return { countOf };
}

function BanInfo({ operator }: { operator: Operator }) {
  const { ban } = operator;
  if (!ban) return null;
  return (
    <Alert color="red" variant="light" title={<Trans>Banned by {ban.by}</Trans>}>
      {ban.reason} (<Ago ms={ban.at_ms} />
      {ban.until_ms != null && (
        <>
          , <Trans>until {formatTime(ban.until_ms)}</Trans>
        </>
      )}
      )
    </Alert>
  );
}

function BanButton({ operator }: { operator: Operator }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [isAsking, setAsking] = useState(false);
  const [reason, setReason] = useState('');
  const [until, setUntil] = useState('');
  const { username } = operator;
  const untilMs = until === '' ? null : new Date(until).getTime();
  const body = { reason: reason.trim(), until_ms: untilMs };
  const ban = useChange(() => send('POST', `${objectPath(path, username)}/ban`, { body }), [[path]]);
  const unban = useChange(() => send('POST', `${objectPath(path, username)}/unban`), [[path]]);
  if (!mayOnNode(caller, 'admin') || username === caller.name) return null;
  if (operator.ban) {
    return (
      <Button
        variant="default"
        loading={unban.isPending}
        onClick={() =>
          unban.mutate(undefined, {
            onSuccess: () => notifications.show({ message: t`${username} may log in again.` }),
            onError: (error) => notifications.show({ color: 'red', message: error.message }),
          })
        }
      >
        <Trans>End the ban</Trans>
      </Button>
    );
  }
  return (
    <>
      <Button variant="default" leftSection={<IconBan size={14} />} onClick={() => setAsking(true)}>
        <Trans>Ban</Trans>
      </Button>
      {isAsking && (
        <Modal opened onClose={() => setAsking(false)} title={<Trans>Ban {username}?</Trans>}>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              event.stopPropagation();
              ban.mutate(undefined, { onSuccess: () => setAsking(false) });
            }}
          >
            <Stack gap="sm">
              <Text size="sm">
                <Trans>
                  This ends all sessions of {username}. A login is rejected with the reason until the ban ends. The
                  relay endpoints of namespaces without another owner are closed.
                </Trans>
              </Text>
              <TextInput
                label={t`Reason`}
                required
                maxLength={1000}
                data-autofocus
                value={reason}
                onChange={(event) => setReason(event.currentTarget.value)}
              />
              <TextInput
                type="datetime-local"
                label={t`Until`}
                description={t`Empty: for ever.`}
                value={until}
                onChange={(event) => setUntil(event.currentTarget.value)}
              />
              {ban.error && (
                <Text size="sm" c="var(--tg-critical)" role="alert">
                  {ban.error.message}
                </Text>
              )}
              <div className="row wrap" style={{ justifyContent: 'space-between' }}>
                <ShowCall
                  method="POST"
                  path={`${objectPath(path, username)}/ban`}
                  body={body}
                  ctl={`people ban ${quoted(username)} --reason ${quoted(reason || 'REASON')}`}
                />
                <Button type="submit" color="red.8" loading={ban.isPending} disabled={reason.trim() === ''}>
                  <Trans>Ban</Trans>
                </Button>
              </div>
            </Stack>
          </form>
        </Modal>
      )}
    </>
  );
}
