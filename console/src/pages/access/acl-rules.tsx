import { Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { choiceName, namedChoices } from '../../api/choice-names';
import type { Schemas } from '../../api/client';
import { mayOnNode, useCaller } from '../../api/session';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { StateBadge } from '../../ui/state-badge';

type AclRule = Schemas['AclRule'];

const joined = (value: unknown): string =>
  Array.isArray(value) ? value.join(', ') : value === undefined || value === null ? '' : String(value);

/** Which clients may publish and subscribe where; the first rule that matches decides. */
export function AclRules() {
  const { t } = useLingui();
  const caller = useCaller();
  const placeholder = '${clientid}';
  const kind: ObjectKind = {
    path: '/api/v1/acl-rules',
    command: 'acl',
    idField: 'id',
    newSchema: 'AclRuleNew',
    inputSchema: 'AclRuleInput',
    newTitle: t`New permission`,
    initial: { permission: 'allow', action: 'all', topics: [] },
    deletion: (object) => (
      <Trans>
        This deletes the rule {String(object.id)} for the topics {joined(object.topics) || '#'}. It applies to connected
        clients from their next action.
      </Trans>
    ),
    fields: () => [
      {
        name: 'permission',
        label: t`Permission`,
        options: namedChoices('permission', ['allow', 'deny']),
      },
      {
        name: 'action',
        label: t`Action`,
        options: namedChoices('action', ['all', 'publish', 'subscribe']),
      },
      {
        name: 'topics',
        label: t`Topics`,
        help: t`Filters, with placeholders such as ${placeholder}; "eq " matches a filter literally. None: every topic.`,
        placeholder: 'devices/${clientid}/#',
      },
      { name: 'username', label: t`User names`, help: t`* stands for any characters. None: all users.` },
      { name: 'client_id', label: t`Client ids`, help: t`* stands for any characters. None: all clients.` },
      {
        name: 'address',
        label: t`Addresses`,
        help: t`Addresses or networks. None: all.`,
        placeholder: '10.0.0.0/8',
      },
      {
        name: 'qos',
        label: t`QoS`,
        help: t`None: any.`,
        options: ['0', '1', '2'],
        control: 'list',
      },
      {
        name: 'retain',
        label: t`Retain`,
        help: t`Only messages with this flag.`,
        options: [
          { value: 'true', label: t`retained messages only` },
          { value: 'false', label: t`other messages only` },
        ],
        control: 'select',
      },
      { name: 'order', label: t`Position`, help: t`Lower values are evaluated first.` },
      { name: 'description', label: t`Description`, help: '' },
      { name: 'enabled', label: t`Active`, help: '', initially: true },
    ],
  };
  const columns: Column<AclRule>[] = [
    {
      id: 'order',
      header: t`Position`,
      align: 'right',
      sort: (row) => row.order ?? 0,
      cell: (row) => row.order ?? 0,
    },
    {
      id: 'permission',
      header: t`Permission`,
      sort: (row) => row.permission,
      cell: (row) => (
        <StateBadge health={row.enabled === false ? 'unknown' : row.permission === 'allow' ? 'good' : 'critical'}>
          {row.enabled === false ? <Trans>not active</Trans> : choiceName('permission', row.permission)}
        </StateBadge>
      ),
    },
    {
      id: 'action',
      header: t`Action`,
      cell: (row) => choiceName('action', row.action ?? 'all'),
    },
    {
      id: 'topics',
      header: t`Topics`,
      cell: (row) =>
        row.topics === undefined ? <Trans>all</Trans> : <span className="mono">{joined(row.topics)}</span>,
    },
    {
      id: 'clients',
      header: t`Clients`,
      cell: (row) =>
        [
          row.username && t`user ${joined(row.username)}`,
          row.client_id && t`client id ${joined(row.client_id)}`,
          row.address && t`address ${joined(row.address)}`,
        ]
          .filter(Boolean)
          .join('; ') || <Trans>all</Trans>,
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–', isHidden: true },
  ];
  return (
    <>
      <Text size="sm" c="dimmed" mb="sm">
        <Trans>
          The first rule that matches decides: rules of the client itself, then of the configuration, then these by
          position. Without a match, the setting auth.default_permission applies.
        </Trans>
      </Text>
      <ObjectList<AclRule>
        kind={kind}
        label={t`Permissions`}
        columns={columns}
        initialOrder="order"
        mayChange={mayOnNode(caller, 'operator')}
        empty={{
          title: <Trans>No permissions yet</Trans>,
          text: <Trans>A permission allows or denies clients to publish or subscribe to topics.</Trans>,
        }}
      />
    </>
  );
}
