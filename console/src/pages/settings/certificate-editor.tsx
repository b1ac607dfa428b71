/** Uploads a certificate for listeners, or replaces one. */

import { Button, Drawer, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { ApiError, useChange } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { ShowCall } from '../../ui/show-call';
import { certificatesPath, type Certificate } from './listener-objects';

export function CertificateEditor({ certificate, onClose }: { certificate?: Certificate; onClose: () => void }) {
  const { t } = useLingui();
  const [id, setId] = useState(certificate?.id ?? '');
  const [chain, setChain] = useState('');
  const [key, setKey] = useState('');
  const path = objectPath(certificatesPath, id || 'ID');
  const body = { certificate: chain, ...(key.trim() === '' ? {} : { private_key: key }) };
  const save = useChange(() => send('PUT', path, { body }), [['certificates'], ['listeners']]);
  const field = save.error instanceof ApiError ? save.error.field : undefined;
  const errorOf = (name: string) => (field === name ? save.error?.message : undefined);
  const isNamed = /^[a-z0-9_-]{1,32}$/.test(id);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate(undefined, {
      onSuccess: () => {
        notifications.show({ message: certificate ? t`${id} was replaced.` : t`${id} was stored.` });
        onClose();
      },
    });
  };
  return (
    <Drawer
      opened
      onClose={onClose}
      position="right"
      size="lg"
      title={
        certificate ? <Trans>Replace the certificate {certificate.id}</Trans> : <Trans>Upload a certificate</Trans>
      }
    >
      <form onSubmit={submit} noValidate>
        <Stack gap="md">
          {certificate ? (
            <Text size="sm">
              <Trans>New connections get the new certificate; open connections stay.</Trans>
            </Text>
          ) : (
            <TextInput
              label={t`Id`}
              required
              value={id}
              onChange={(event) => setId(event.currentTarget.value)}
              error={
                errorOf('id') ?? (id !== '' && !isNamed ? t`1 to 32 lower-case letters, digits, - and _` : undefined)
              }
            />
          )}
          <Textarea
            label={t`Certificate and its chain (PEM)`}
            required
            autosize
            minRows={6}
            maxRows={14}
            classNames={{ input: 'mono' }}
            placeholder="-----BEGIN CERTIFICATE-----"
            value={chain}
            onChange={(event) => setChain(event.currentTarget.value)}
            error={errorOf('certificate')}
          />
          <Textarea
            label={t`Private key (PEM)`}
            description={t`Stored on the node and never shown again. Leave it out for authorities of clients.`}
            autosize
            minRows={6}
            maxRows={14}
            classNames={{ input: 'mono' }}
            placeholder="-----BEGIN PRIVATE KEY-----"
            spellCheck={false}
            value={key}
            onChange={(event) => setKey(event.currentTarget.value)}
            error={errorOf('private_key')}
          />
          {save.error && !['id', 'certificate', 'private_key'].includes(field ?? '') && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {save.error.message}
            </Text>
          )}
        </Stack>
        <div className="drawer-footer">
          <ShowCall
            method="PUT"
            path={path}
            body={{ certificate: '…', private_key: '…' }}
            ctl={`certificates set ${id || 'ID'} --certificate FILE --private-key FILE`}
          />
          <Button type="submit" loading={save.isPending} disabled={!isNamed || chain.trim() === ''}>
            {certificate ? <Trans>Replace</Trans> : <Trans>Upload</Trans>}
          </Button>
        </div>
      </form>
    </Drawer>
  );
}
