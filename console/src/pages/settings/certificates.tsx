/** Certificates that were uploaded for listeners, and when certificates expire. */

import { Button, Text, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus } from '@tabler/icons-react';
import { useState } from 'react';
import { type Schemas } from '../../api/client';
import { objectPath } from '../../api/objects';
import { formatDate, formatTime } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { DataTable, type Column } from '../../ui/data-table';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { CertificateEditor } from './certificate-editor';
import { certificatesPath, useCertificates, type Certificate } from './listener-objects';

/** Time before the expiry of a certificate in which it is a warning. */
const soonMs = 30 * 86_400_000;

export function Expiry({ ms }: { ms: number | null | undefined }) {
  if (ms == null) return <>–</>;
  const left = ms - Date.now();
  const date = formatDate(ms);
  return (
    <span title={formatTime(ms)}>
      {left > soonMs ? (
        date
      ) : (
        <StateBadge health={left > 0 ? 'warning' : 'critical'}>
          {left > 0 ? date : <Trans>expired {date}</Trans>}
        </StateBadge>
      )}
    </span>
  );
}

export function CertificateName({ certificate }: { certificate: Schemas['ListenerCertificate'] }) {
  return <span title={certificate.file}>{certificate.names.join(', ') || certificate.subject}</span>;
}

export function Certificates({ mayChange }: { mayChange: boolean }) {
  const { t } = useLingui();
  const list = useCertificates();
  const [edited, setEdited] = useState<Certificate | 'new'>();
  const [deleted, setDeleted] = useState<Certificate>();
  const columns: Column<Certificate>[] = [
    { id: 'id', header: t`Certificate`, sort: (row) => row.id, cell: (row) => row.id },
    {
      id: 'names',
      header: t`Names`,
      cell: (row) => <span title={row.subject ?? undefined}>{row.names.join(', ') || row.subject || '–'}</span>,
    },
    {
      id: 'expires',
      header: t`Expires`,
      sort: (row) => row.not_after_ms,
      cell: (row) => <Expiry ms={row.not_after_ms} />,
    },
    {
      id: 'use',
      header: t`Use`,
      cell: (row) =>
        row.has_private_key ? <Trans>certificate with key</Trans> : <Trans>authorities of clients</Trans>,
    },
    { id: 'listeners', header: t`Used by`, cell: (row) => row.used_by.join(', ') || '–' },
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            cell: (row: Certificate) => (
              <span className="row">
                <Button size="compact-xs" variant="default" onClick={() => setEdited(row)}>
                  <Trans>Replace</Trans>
                </Button>
                {row.used_by.length === 0 && (
                  <Button size="compact-xs" variant="default" onClick={() => setDeleted(row)}>
                    <Trans>Delete</Trans>
                  </Button>
                )}
              </span>
            ),
          },
        ]
      : []),
  ];
  const upload = mayChange && (
    <Button leftSection={<IconPlus size={14} />} variant="default" onClick={() => setEdited('new')}>
      <Trans>Upload a certificate</Trans>
    </Button>
  );
  return (
    <>
      <DataTable
        name="certificates"
        label={t`Certificates`}
        columns={columns}
        rows={list.data}
        rowKey={(row) => row.id}
        error={list.error}
        retry={() => void list.refetch()}
        toolbar={
          <>
            <Title order={2}>
              <Trans>Certificates</Trans>
            </Title>
            <div className="row wrap table-actions">
              <ShowCall method="GET" path={certificatesPath} ctl="certificates list" />
              {list.data?.length !== 0 && upload}
            </div>
          </>
        }
        empty={
          <EmptyState title={<Trans>No certificates were uploaded</Trans>} actions={upload}>
            <Trans>Listeners over TLS need one. Listeners of the configuration use files instead.</Trans>
          </EmptyState>
        }
      />
      {edited && (
        <CertificateEditor certificate={edited === 'new' ? undefined : edited} onClose={() => setEdited(undefined)} />
      )}
      {deleted && <DeleteCertificate certificate={deleted} onClose={() => setDeleted(undefined)} />}
    </>
  );
}

function DeleteCertificate({ certificate, onClose }: { certificate: Certificate; onClose: () => void }) {
  const { t } = useLingui();
  const { id } = certificate;
  return (
    <ConfirmDeletion
      title={<Trans>Delete the certificate {id}?</Trans>}
      action={<Trans>Delete the certificate</Trans>}
      call={{ path: objectPath(certificatesPath, id), ctl: `certificates delete ${id}` }}
      onClose={onClose}
      invalidates={[['certificates']]}
      message={t`${id} was deleted.`}
    >
      <Text size="sm">
        <Trans>This deletes the certificate {id} and its private key from the node.</Trans>
      </Text>
    </ConfirmDeletion>
  );
}
