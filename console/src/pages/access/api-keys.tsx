import { Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import type { ConfigurationObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { CopyText } from '../../ui/copy';
import type { Column } from '../../ui/data-table';
import { Issued } from '../../ui/issued';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { Ago } from '../../ui/time';
import { useNamespaceNames } from '../relay/endpoint-kind';
import { RoleName, useRoleNames } from './grants';
import { ValidityBadge, ValidUntil } from './validity';

type ApiKey = Schemas['ApiKey'];

/** Keys with which programs use the API. */
export function ApiKeys() {
  const { t } = useLingui();
  const caller = useCaller();
  const roles = useRoleNames().key;
  const namespaces = useNamespaceNames();
  const [created, setCreated] = useState<ConfigurationObject>();
  const isOnNode = caller.role !== null;
  const kind: ObjectKind = {
    path: '/api/v1/api-keys',
    command: 'api-keys',
    idField: 'id',
    newSchema: 'ApiKeyNew',
    inputSchema: 'ApiKeyInput',
    newTitle: t`New API key`,
    initial: { role: 'viewer', ...(isOnNode ? {} : { namespace: namespaces[0] }) },
    deletion: (object) => (
      <Trans>This deletes the API key {String(object.id)}. Programs that use it are rejected at once.</Trans>
    ),
    fields: (isNew) => [
      ...(isNew
        ? [{ name: 'id', label: t`Id`, help: t`Without one, the node generates it.`, placeholder: t`generated` }]
        : []),
      { name: 'role', label: t`Role`, help: '', options: roles },
      ...(isNew
        ? [
            {
              name: 'namespace',
              label: t`Namespace`,
              help: t`None: the key is for the whole node.`,
              options: namespaces,
            },
          ]
        : []),
      { name: 'expires_at_ms', label: t`Valid until`, help: t`Empty: for ever.`, control: 'time' },
      { name: 'description', label: t`Purpose`, help: '' },
      { name: 'enabled', label: t`Active`, help: '' },
    ],
  };
  const columns: Column<ApiKey>[] = [
    { id: 'description', header: t`Purpose`, sort: (row) => row.description, cell: (row) => row.description || '–' },
    { id: 'role', header: t`Role`, sort: (row) => row.role, cell: (row) => <RoleName role={row.role} /> },
    {
      id: 'namespace',
      header: t`Namespace`,
      sort: (row) => row.namespace,
      cell: (row) => row.namespace ?? <Trans>the whole node</Trans>,
    },
    {
      id: 'state',
      header: t`State`,
      cell: (row) => <ValidityBadge of={row} />,
    },
    {
      id: 'until',
      header: t`Valid until`,
      sort: (row) => row.expires_at_ms,
      cell: (row) => <ValidUntil of={row} />,
    },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <>
      <ObjectList<ApiKey>
        kind={kind}
        label={t`API keys`}
        columns={columns}
        mayChange={mayInNamespace(caller, 'owner')}
        isNamespaced
        namespaceRole="owner"
        onCreated={setCreated}
        empty={{
          title: <Trans>No API keys yet</Trans>,
          text: <Trans>Programs use the API with a key: Prometheus, dashboards, your own scripts.</Trans>,
        }}
      />
      {created && (
        <Issued
          title={<Trans>API key {String(created.id)}</Trans>}
          secret={`${String(created.id)}:${String(created.secret)}`}
          onClose={() => setCreated(undefined)}
        >
          <Text size="sm">
            <Trans>Try it:</Trans>
          </Text>
          <CopyText text={`curl -u ${String(created.id)}:${String(created.secret)} ${location.origin}/api/v1/me`} />
        </Issued>
      )}
    </>
  );
}
