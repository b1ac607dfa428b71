import { Button, FileButton } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconUpload } from '@tabler/icons-react';
import { useState, type DragEvent } from 'react';
import { mayInNamespace, useCaller } from '../../api/session';
import { startUpload } from '../../api/upload';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { FileList } from './file-list';
import { TransferList } from './transfer-list';
import { Uploads } from './uploads';

/** Complete files, and those that are being sent. */
export default function FilesPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [isOver, setOver] = useState(false);
  const mayUpload = mayInNamespace(caller, 'operator');
  // With roles in several namespaces the node has to be told whose file it is.
  const namespace = caller.role === null ? caller.namespaces[0]?.namespace : undefined;
  const upload = (files: Iterable<File>) => {
    for (const file of files) startUpload(file, namespace);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    if (mayUpload) upload(event.dataTransfer.files);
  };
  return (
    <div
      className={isOver ? 'drop-target' : undefined}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(mayUpload);
      }}
      onDragLeave={(event) => event.currentTarget === event.target && setOver(false)}
      onDrop={drop}
    >
      <Page
        title={t`Files`}
        description={<Trans>Files that devices, programs and people have sent.</Trans>}
        actions={
          mayUpload && (
            <FileButton multiple onChange={(files) => upload(files)}>
              {(props) => (
                <Button {...props} leftSection={<IconUpload size={14} />}>
                  <Trans>Upload files</Trans>
                </Button>
              )}
            </FileButton>
          )
        }
      >
        <Uploads />
        <PageTabs
          tabs={[
            { id: 'files', label: <Trans>Files</Trans>, content: <FileList /> },
            { id: 'transfers', label: <Trans>Transfers</Trans>, content: <TransferList /> },
          ]}
        />
      </Page>
    </div>
  );
}
