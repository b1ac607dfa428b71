import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { mayOnNode, useCaller } from '../../api/session';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';

type User = Schemas['User'];

/** Clients that log in with a name and a password that the node knows. */
export function MqttUsers() {
  const { t } = useLingui();
  const caller = useCaller();
  const kind: ObjectKind = {
    path: '/api/v1/users',
    command: 'users',
    idField: 'username',
    newSchema: 'UserNew',
    inputSchema: 'UserInput',
    newTitle: t`New user`,
    initial: { username: '', password: '' },
    deletion: (object) => (
      <Trans>
        This deletes the MQTT user {String(object.username)}. Its clients can no longer log in with this name.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew ? [{ name: 'username', label: t`Name` }] : []),
      {
        name: 'password',
        label: t`Password`,
        help: isNew ? t`Stored as a hash.` : t`Empty: the password stays as it is.`,
      },
      { name: 'is_superuser', label: t`Superuser`, help: t`May do everything, regardless of permissions.` },
      { name: 'description', label: t`Description`, help: '' },
    ],
  };
  const columns: Column<User>[] = [
    {
      id: 'superuser',
      header: t`Superuser`,
      sort: (row) => (row.is_superuser ? 0 : 1),
      cell: (row) =>
        row.is_superuser ? (
          <StateBadge health="warning">
            <Trans>yes</Trans>
          </StateBadge>
        ) : (
          <Trans>no</Trans>
        ),
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
    {
      id: 'updated',
      header: t`Changed`,
      sort: (row) => row.updated_at_ms,
      cell: (row) => <Ago ms={row.updated_at_ms} />,
      isHidden: true,
    },
  ];
  return (
    <ObjectList<User>
      kind={kind}
      label={t`MQTT users`}
      columns={columns}
      mayChange={mayOnNode(caller, 'operator')}
      empty={{
        title: <Trans>No MQTT users yet</Trans>,
        text: (
          <Trans>
            Clients of other machines need a user name and password, unless another authenticator knows them.
          </Trans>
        ),
      }}
    />
  );
}
