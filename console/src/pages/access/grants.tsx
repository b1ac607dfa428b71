import { ActionIcon, Button, Input, Select, Stack } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconX } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import type { InputProps } from '../../ui/field-inputs';

type Grant = Schemas['NamespaceGrant'];

/** Names of roles, for lists to choose from. */
export function useRoleNames() {
  const { t } = useLingui();
  const viewer = { value: 'viewer', label: t`viewer: may read` };
  const operator = { value: 'operator', label: t`operator: may change objects and send commands` };
  const owner = { value: 'owner', label: t`owner: also manages API keys and invitations` };
  const admin = { value: 'admin', label: t`admin: may do everything` };
  return {
    node: [viewer, operator, admin],
    namespace: [viewer, operator, owner],
    key: [viewer, operator, owner, admin],
  };
}

/** A role, without what it permits. */
export function RoleName({ role }: { role: Schemas['ApiKeyRole'] }): ReactNode {
  switch (role) {
    case 'viewer':
      return <Trans>viewer</Trans>;
    case 'operator':
      return <Trans>operator</Trans>;
    case 'owner':
      return <Trans>owner</Trans>;
    default:
      return <Trans>admin</Trans>;
  }
}

/** Roles in namespaces. */
export function GrantsInput({ value, onChange, error, label, disabled }: InputProps) {
  const { t } = useLingui();
  const roles = useRoleNames().namespace;
  const namespaces = useList<{ id: string }>('/api/v1/namespaces');
  const grants = (value ?? []) as Grant[];
  const names = (namespaces.rows ?? []).map(({ id }) => id);
  const change = (index: number, next: Partial<Grant>) =>
    onChange(grants.map((grant, at) => (at === index ? { ...grant, ...next } : grant)));
  return (
    <Stack gap={6}>
      <Input.Label component="div">{label}</Input.Label>
      <Input.Description>
        <Trans>Instead of a role on the whole node.</Trans>
      </Input.Description>
      {grants.map((grant, index) => (
        <div className="row" key={index}>
          <Select
            aria-label={t`Namespace`}
            className="grow"
            searchable
            allowDeselect={false}
            disabled={disabled}
            data={names}
            value={grant.namespace}
            onChange={(namespace) => change(index, { namespace: namespace ?? '' })}
          />
          <Select
            aria-label={t`Role`}
            className="grow"
            allowDeselect={false}
            disabled={disabled}
            data={roles}
            value={grant.role}
            onChange={(role) => change(index, { role: role as Grant['role'] })}
          />
          <ActionIcon
            aria-label={t`Remove`}
            disabled={disabled}
            onClick={() => onChange(grants.filter((_, at) => at !== index))}
          >
            <IconX size={14} />
          </ActionIcon>
        </div>
      ))}
      {error && <Input.Error>{error}</Input.Error>}
      <Button
        variant="subtle"
        size="compact-xs"
        style={{ alignSelf: 'flex-start' }}
        leftSection={<IconPlus size={12} />}
        disabled={disabled || names.length === 0}
        onClick={() =>
          onChange([
            ...grants,
            {
              namespace: names.find((name) => grants.every((grant) => grant.namespace !== name)) ?? 'default',
              role: 'viewer',
            },
          ])
        }
      >
        <Trans>Add a namespace</Trans>
      </Button>
    </Stack>
  );
}
