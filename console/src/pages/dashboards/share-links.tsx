import { Button, Group, Modal, Select, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState } from 'react';
import { useChange } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { Confirm } from '../../ui/confirm';
import { CopyText } from '../../ui/copy';
import { ShowCall } from '../../ui/show-call';
import { Ago } from '../../ui/time';
import { path, type Share, type StoredDashboard } from './dashboard';

const dayMs = 86_400_000;

/** Links for people without an account: created, shown once, revoked. */
export function ShareLinks({ dashboard, onClose }: { dashboard: StoredDashboard; onClose: () => void }) {
  const { t } = useLingui();
  const [description, setDescription] = useState('');
  const [days, setDays] = useState('30');
  const shares = `${objectPath(path, dashboard.id)}/shares`;
  const body = () => ({
    description,
    ...(days === 'never' ? {} : { expires_at_ms: Date.now() + Number(days) * dayMs }),
  });
  const create = useChange(() => send<Share & { token: string }>('POST', shares, { body: body() }), [[path]]);
  const revoke = useChange((id: string) => send<null>('DELETE', `${shares}/${encodeURIComponent(id)}`), [[path]]);
  const [revoking, setRevoking] = useState<Share>();
  return (
    <Modal opened onClose={onClose} title={<Trans>Share {dashboard.name || dashboard.id}</Trans>} size="lg">
      <Stack gap="md">
        <Text size="sm">
          <Trans>
            Everybody with the link sees the dashboard and the data of its cards, without an account. Nothing can be
            changed.
          </Trans>
        </Text>
        {create.data && (
          <div>
            <Text size="sm" mb={4}>
              <Trans>The link is shown only now:</Trans>
            </Text>
            <CopyText text={`${location.origin}/kiosk#${create.data.token}`} />
          </div>
        )}
        <Group align="flex-end" gap="xs">
          <TextInput
            className="grow"
            label={t`Purpose`}
            maxLength={200}
            value={description}
            onChange={(event) => setDescription(event.currentTarget.value)}
          />
          <Select
            label={t`Ends`}
            w={150}
            allowDeselect={false}
            value={days}
            onChange={(next) => setDays(next ?? '30')}
            data={[
              { value: '1', label: t`in a day` },
              { value: '7', label: t`in a week` },
              { value: '30', label: t`in 30 days` },
              { value: 'never', label: t`never` },
            ]}
          />
          <Button size="sm" loading={create.isPending} onClick={() => create.mutate(undefined)}>
            <Trans>Create a link</Trans>
          </Button>
        </Group>
        {create.error && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {create.error.message}
          </Text>
        )}
        {dashboard.shares.length > 0 && (
          <table className="data-table">
            <tbody>
              {dashboard.shares.map((share) => (
                <tr key={share.id}>
                  <td>{share.description || share.id}</td>
                  <td className="dimmed">{share.created_by}</td>
                  <td>
                    {share.expires_at_ms === null ? (
                      <Trans>does not end</Trans>
                    ) : (
                      <Trans>
                        ends <Ago ms={share.expires_at_ms} />
                      </Trans>
                    )}
                  </td>
                  <td className="right">
                    <Button variant="default" size="compact-xs" onClick={() => setRevoking(share)}>
                      <Trans>Revoke</Trans>
                    </Button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <div>
          <ShowCall method="POST" path={shares} body={{ description }} />
        </div>
      </Stack>
      {revoking && (
        <Confirm
          title={<Trans>Revoke the link {revoking.description || revoking.id}?</Trans>}
          action={<Trans>Revoke</Trans>}
          call={{ method: 'DELETE', path: `${shares}/${encodeURIComponent(revoking.id)}` }}
          isPending={revoke.isPending}
          error={revoke.error}
          onClose={() => setRevoking(undefined)}
          onConfirm={() => revoke.mutate(revoking.id, { onSuccess: () => setRevoking(undefined) })}
        >
          <Text size="sm">
            <Trans>Everybody who has the link loses access at once. It cannot be restored.</Trans>
          </Text>
        </Confirm>
      )}
    </Modal>
  );
}
